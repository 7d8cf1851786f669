"""The configuration of a whole release on one GPU: a store, a hub, places and gates of its own below one directory."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL_ID = "bench/llama"
ROUTER_PORT, HUB_PORTS_FROM_THERE = 18300, 80
_LARGE_GPU_BYTES = 100e9
FIRST, FP8 = "bf16", "fp8"
COST = "cost"
"""The release that takes what produces tokens for the least money."""

FP8_CHATS, FP8_TOKENS, INT8 = "fp8_chats", "fp8_per_channel_token", "int8_w8a8"
RECIPES = ("none", FP8, FP8_CHATS, FP8_TOKENS, INT8)
"""What a release by cost may try: FP8 calibrated on texts, on chats, or not at all, and INT8 as others publish it."""

OURS = (FP8, FP8_TOKENS)
"""What a second release may quantize itself."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "kv_fp8": {"kv_cache_dtype": "fp8"},
    "ngram": {
        "speculative_config": {
            "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2,
        }
    },
}  # fmt: skip
SMOKE_VARIANTS: Mapping[str, Mapping[str, Any]] = {"kv_u8": {"KV_CACHE_PRECISION": "u8"}}
"""Of the CPU's engine."""


@dataclass(frozen=True, eq=False)
class Subject:
    """The model that is released.

    Attributes:
        tasks: What it is asked before and after.
        served_tasks: Those of them that are asked of the served engine as well.
        context: Tokens of a prompt and its answer.
        output_tokens: Of the load test's requests: median, 95th percentile, most.
        calibration: Texts, and tokens of each.
        first_token_milliseconds: Until which a request must have its first text.
        scorer: What the evaluation says of it.
        searched: Whether the load test looks for the highest rate.
        copied: Name of the shipped prompts and texts that it is given; none for those written here.
        margin: What accuracy may be lost, as a fraction; a task alone may lose twice as much.
        items: Fewer of them are no verdict.
        wordnet: Directory of WordNet's files, of which the task of definitions gets so many items.
    """

    tasks: tuple[str, ...]
    served_tasks: tuple[str, ...]
    context: int
    output_tokens: tuple[int, int, int] = (8, 18, 24)
    calibration: tuple[int, int] = (256, 64)
    first_token_milliseconds: int = 500
    scorer: Mapping[str, Any] = field(default_factory=dict)
    searched: bool = True
    copied: str = ""
    margin: float = 0.015
    items: int = 500
    wordnet: Path | None = None


DEMO = Subject(("demo_choice", "demo_generate"), ("demo_generate",), 128, scorer={"batch_size": 256}, copied="demo")
LARGE = Subject(
    ("last_word",),
    ("last_word",),
    1024,
    output_tokens=(64, 120, 160),
    calibration=(512, 512),
    first_token_milliseconds=1000,
)
READY = replace(
    LARGE, scorer={"scorer": "vllm", "scorer_arguments": {"enforce_eager": True, "gpu_memory_utilization": 0.7}}
)
"""With a checkpoint in GPTQ or AWQ, which vLLM alone reads; production is beside the scorer."""
MIXTURE = replace(READY, searched=False)
"""A mixture of experts; modelopt's export of it is read by vLLM alone."""
PRETRAINED = Subject(
    ("demo_capitals", "demo_definitions"),
    ("demo_capitals",),
    512,
    output_tokens=(64, 120, 160),
    calibration=(128, 512),
    copied="chat-example",
    margin=0.06,
    items=60,
)
"""SmolLM2-135M-Instruct, which is asked what `make demo` asks it."""


def with_more_items(subject: Subject, wordnet: Path) -> Subject:
    """A chat model that is asked for 600 definitions, on the server, too."""
    return replace(subject, served_tasks=subject.tasks, items=600, wordnet=wordnet)


@dataclass(frozen=True)
class Host:
    """What the release runs on.

    Attributes:
        accelerator: The GPU's name in the catalog; `cpu` to try the benchmark without one.
        memory_share: Of the GPU's memory that each server may take; up to three of them stand side by side.
        targets: What the release is for, each on GPUs of its own as long as there are GPUs.
        gpus: Their indices.
        tensor_parallel: How many each engine takes.
        sequences: Requests that an engine holds at a time.
        triton_home: Directory of the unpacked tritonserver.
        control: Interpreter of the command line and the router.
        model: Interpreter with modelopt and lm-eval.
        engine: Interpreter with vLLM and numpy 1.26.
        second: The second release's recipe: FP8, or a method of others in `ready_checkpoints`.
        tried: Recipes of a release by cost; none for releases by size.
        variants: What it tries each of them with besides, of `VARIANTS`.
        first_port: The first of its ports; two hundred from there are its own.
        eager: Engines neither compile nor capture CUDA graphs.
        engine_args: Of every engine, beside a variant's.
    """

    accelerator: str
    memory_share: float
    targets: tuple[str, ...]
    gpus: tuple[int, ...]
    tensor_parallel: int
    sequences: int
    triton_home: Path
    control: Path
    model: Path
    engine: Path
    second: str = FP8
    tried: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    first_port: int = ROUTER_PORT
    eager: bool = False
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_cpu(self) -> bool:
        """Whether it is only tried, with a small model."""
        return self.accelerator == "cpu"


@dataclass(frozen=True)
class Load:
    """The traffic of load test and canary, in requests a second, and how long a canary's step is watched."""

    rate: float
    seconds: float
    bake_seconds: float


def memory_of(accelerator: str, *, by_cost: bool = False) -> tuple[float, int]:
    """The share of a GPU's memory for each server, and the requests that it holds at a time.

    A server of 8B in bfloat16 takes 17 GB and 0.13 GB a request. Two stand side by side in a first release, as that by
    cost is, and three in a later one: production, the release before it, and the candidate.
    """
    from llm_pipeline.catalog.tables import find_gpu

    if by_cost:
        return 0.45, 128
    return (0.24, 128) if find_gpu(accelerator).usable_bytes > _LARGE_GPU_BYTES else (0.3, 48)


def write_files(work: Path, host: Host, load: Load, subject: Subject) -> Path:
    """Write tasks, texts, prompts and configs below `work`; returns the directory of the configs."""
    configs = work / "configs"
    if not (configs / "workloads").is_dir():
        if subject.copied:
            _copy_shipped(configs, subject)
            if subject.wordnet:
                rows = _definitions(subject.wordnet, subject.items)
                _write_lines(configs / "tasks" / "demo_definitions.jsonl", rows)
        else:
            _write_texts(configs)
    _write(configs / "deployments" / "local.yaml", _deployment(work, host))
    for target in host.targets:
        _write(configs / "targets" / f"{target}.yaml", _target(host, subject))
    _write(configs / "policies" / "gates.yaml", _policy(load, subject, by_cost=bool(host.tried), on_cpu=host.is_cpu))
    _write(configs / "quantization" / "none.yaml", {"weights": "none"})
    _write(configs / "quantization" / "int8_weight_only.yaml", {"weights": "int8_weight_only"})
    _write(configs / "quantization" / "fp8.yaml", _calibrated("fp8", subject))
    _write(configs / "quantization" / f"{FP8_TOKENS}.yaml", {"weights": FP8_TOKENS})
    if FP8_CHATS in host.tried:
        _write_chats(configs)
        _write(configs / "quantization" / f"{FP8_CHATS}.yaml", _calibrated("fp8", subject, chats=True))
    for ready in {INT8, host.second} - set(OURS):
        _write(configs / "quantization" / f"{ready}.yaml", {"source": (work / ready).as_uri()})
    second = "none" if host.is_cpu else host.second  # vLLM reads none of them on every CPU
    for name, recipe in ((FIRST, "none"), (host.second, second)):
        _write(configs / "releases" / f"{name}.yaml", _release([recipe], host, load, subject))
    if host.tried:
        by_cost = {"ladder": {"objective": "cost"}, **_release(host.tried, host, load, subject)}
        _write(configs / "releases" / f"{COST}.yaml", by_cost)
    return configs


def _write_texts(configs: Path) -> None:
    """Words that `llama_8b` has tokens for, and the one task that it knows: to say the last word again."""
    draw = random.Random(5)  # noqa: S311 - synthetic data, nothing secret
    words = [f"w{number}" for number in range(4000)]

    def texts(count: int, tokens: int) -> list[str]:
        return [" ".join(draw.choices(words, k=tokens)) for _ in range(count)]

    _write_lines(configs / "calibration" / "texts.jsonl", ({"text": text} for text in texts(512, 511)))
    _write_lines(configs / "workloads" / "prompts.jsonl", ({"prompt": text} for text in texts(2000, 255)))
    items = ({"prompt": text, "answer": text.split()[-1]} for text in texts(1000, 40))
    _write_lines(configs / "tasks" / "last_word.jsonl", items)
    task = {
        "task": "last_word",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "last_word.jsonl"}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 1},
        "filter_list": [
            {
                "name": "stripped",
                "filter": [{"function": "regex", "regex_pattern": r"^\s*(.*?)\s*$"}, {"function": "take_first"}],
            }
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    _write(configs / "tasks" / "last_word.yaml", task)


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _copy_shipped(configs: Path, subject: Subject) -> None:
    shipped, name = REPOSITORY / "configs", f"{subject.copied}.jsonl"
    tasks = "demo" if subject.copied == DEMO.copied else "demo-chat"
    shutil.copytree(shipped / "tasks" / tasks, configs / "tasks")
    for directory, copy in (("calibration", "texts.jsonl"), ("workloads", "prompts.jsonl")):
        (configs / directory).mkdir()
        shutil.copy(shipped / directory / name, configs / directory / copy)


def _definitions(wordnet: Path, count: int) -> list[dict[str, Any]]:
    """The nouns that its texts use most, each with what it means most often and what three others mean."""
    used = {}
    for line in (wordnet / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, sense, uses = line.split()
        if sense == "1" and re.fullmatch(r"[a-z]{3,}%1:.*", key):
            used[key.partition("%")[0]] = int(uses)
    index = [line.split() for line in (wordnet / "index.noun").read_text(encoding="utf-8").splitlines()]
    place = {line[0]: line[-int(line[2])] for line in index if line[0] in used}
    texts = (line.partition(" | ") for line in (wordnet / "data.noun").read_text(encoding="utf-8").splitlines())
    meaning = {head[:8]: text.partition(";")[0].strip() for head, _, text in texts}
    words = sorted(place, key=lambda word: (-used[word], word))[: 2 * count]
    draw = random.Random(5)  # noqa: S311 - synthetic data, nothing secret
    rows = []
    for word in draw.sample(words, count):
        choices = draw.sample([meaning[place[other]] for other in words if place[other] != place[word]], 3)
        answer = draw.randrange(4)
        rows.append(
            {"word": word, "choices": [*choices[:answer], meaning[place[word]], *choices[answer:]], "answer": answer}
        )
    return rows


def _write_chats(configs: Path) -> None:
    """What users ask, as chats to calibrate on."""
    asked = (configs / "workloads" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    chats = [{"messages": [{"role": "user", "content": json.loads(line)["prompt"]}]} for line in asked]
    _write_lines(configs / "calibration" / "chats.jsonl", chats)


def _deployment(work: Path, host: Host) -> dict[str, Any]:
    return {
        "store": str(work / "store"),
        "work_root": str(work / "work"),
        "state_root": str(work / "state"),
        "hub": {"endpoint": f"http://127.0.0.1:{host.first_port + HUB_PORTS_FROM_THERE}"},
        "environments": {"control": str(host.control), "model": str(host.model), "engine": str(host.engine)},
        "triton_home": str(host.triton_home),
        **({} if host.is_cpu else {"quantization_host": {"accelerator": host.accelerator, "gpus": [host.gpus[0]]}}),
        "gpu_hour_prices": {host.accelerator: 0.1 if host.is_cpu else 5.0},
        "places": {
            target: _place(host.first_port + 100 * number, {} if host.is_cpu else {"gpus": _gpus(host, number)})
            for number, target in enumerate(host.targets)
        },
    }


def _gpus(host: Host, number: int) -> list[int]:
    """The GPUs of a target."""
    return [host.gpus[(number * host.tensor_parallel + rank) % len(host.gpus)] for rank in range(host.tensor_parallel)]


def _place(first_port: int, gpus: Mapping[str, Any]) -> dict[str, Any]:
    def ports(offset: int) -> dict[str, Any]:
        http = first_port + offset
        return {"http": http, "grpc": http + 1, "metrics": http + 2, "openai": http + 3, **gpus}

    return {
        "environment": "engine",
        "staging": ports(10),
        "blue": ports(20),
        "green": ports(30),
        "comparison": ports(40),
        "router": {"port": first_port, "admin_port": first_port + 1},
    }


def _target(host: Host, subject: Subject) -> dict[str, Any]:
    if host.is_cpu and host.tried:  # vLLM reads none of these formats on a CPU
        return {
            "accelerator": "cpu",
            "accelerator_count": 0,
            "engine": "openvino_cpu",
            "limits": {"maximum_sequences": 16, "maximum_batched_tokens": 512},
            "variants": SMOKE_VARIANTS,
        }
    return {
        **({"variants": {name: VARIANTS[name] for name in host.variants}} if host.variants else {}),
        "accelerator": host.accelerator,
        "accelerator_count": 0 if host.is_cpu else host.tensor_parallel,
        "parallelism": {"tensor": host.tensor_parallel},
        "engine": "vllm",
        "environment": "engine",
        "runtime_version": "0.20.2",
        "container": "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3",  # what a cluster would run
        "limits": {
            "maximum_sequences": host.sequences,
            "maximum_tokens_per_request": subject.context,
            "maximum_batched_tokens": max(512, subject.context) if host.is_cpu else 4096,
            "maximum_queued_requests": 512,
        },
        "runtime": {
            "kv_cache": {"free_memory_fraction": host.memory_share},
            **({"cuda_graphs": False} if host.is_cpu or host.eager else {}),
            **({"engine_args": host.engine_args} if host.engine_args else {}),
        },
    }


def _policy(load: Load, subject: Subject, *, by_cost: bool, on_cpu: bool) -> dict[str, Any]:
    accuracy = {"margin": subject.margin, "task_margin": 2 * subject.margin}
    accuracy |= {"minimum_items": subject.items}
    accuracy |= {"maximum_cut_share": 1.0}  # an answer is one token, or a chat model's that goes on
    return {
        "accuracy": accuracy,
        "served_accuracy": accuracy,
        "staging": {
            "ready_timeout_seconds": 300,
            "golden_match_fraction": 0.9,
            "minimum_golden_prompts": 20 if on_cpu else 50,  # as in production.yaml
        },
        "load_test": {
            "service_level": {
                "first_token_milliseconds": subject.first_token_milliseconds,
                "end_to_end_milliseconds": 4 * subject.first_token_milliseconds,
            },
            "attainment": 0.95,
            "maximum_error_fraction": 0.0,
            "maximum_client_lag_milliseconds": 100,
            **({} if subject.searched else {"search": None}),
            **({"search": {"maximum_multiple": 16, "window_seconds": 8}} if by_cost else {}),
        },
        "canary": {
            "steps_percent": [5, 25, 50, 100],
            "minimum_bake_seconds": load.bake_seconds,
            "maximum_bake_seconds": 20 * load.bake_seconds,
            "minimum_requests": 12,
            "slow_ratio": 2.0,
            "slow_quantiles": [0.5, 0.9],
            "look_seconds": 1,
            "on_undecided": "roll_back",
        },
    }


def _calibrated(weights: str, subject: Subject, *, chats: bool = False) -> dict[str, Any]:
    samples, tokens = subject.calibration
    calibration: dict[str, Any] = {"samples": samples, "maximum_tokens": tokens, "chat_template": chats}
    calibration |= {"sources": ["calibration/chats.jsonl" if chats else "calibration/texts.jsonl"]}
    return {"weights": weights, "calibration": calibration}


def _release(recipes: Sequence[str], host: Host, load: Load, subject: Subject) -> dict[str, Any]:
    median, p95, most = subject.output_tokens
    return {
        "description": f"A model made here, {', '.join(recipes)}.",
        "model": {"id": MODEL_ID, "revision": "main"},
        "baseline": {"dtype": "float16" if host.is_cpu else "bfloat16"},
        "recipes": list(recipes),
        "targets": list(host.targets),
        "policy": "gates",
        "deployment": "local",
        "evaluation": {
            "task_directory": "tasks",
            "tasks": list(subject.tasks),
            "served_tasks": list(subject.served_tasks),
            "maximum_length": subject.context,
            **subject.scorer,
        },
        "workload": {
            "prompts": "workloads/prompts.jsonl",
            "rate_per_second": load.rate,
            "duration_seconds": load.seconds,
            "output_tokens": {"kind": "lognormal", "median": median, "p95": p95, "minimum": 2, "maximum": most},
            "seed": 7,
        },
        "approval": {"required": True, "timeout_hours": 1},
    }


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
