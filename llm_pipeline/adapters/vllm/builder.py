"""The `vllm` builder: the checkpoint is served as it is, plain or quantized by modelopt or others, by vLLM's batching.

Heavy: import it through `engine_builder` only. The build starts vLLM with the batcher that will serve it, and answers
the golden prompts. The engine directory holds `engine.json` and what vLLM compiled for this model and GPU, so that a
server does not compile it again.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.checkpoint_directory import check_directory
from llm_pipeline.artifacts.checkpoint_files import QuantizationMetadata, read_json, read_quantization
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts, require_target_host
from llm_pipeline.artifacts.golden import GoldenPrompt, answered, opened, write_golden
from llm_pipeline.artifacts.model_rules import ModelRules, read_model_rules
from llm_pipeline.artifacts.repository_layout import CHECKPOINT_DIRECTORY
from llm_pipeline.base.confinement import confined
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import PhaseClock
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import BuildInputs, golden_match
from llm_pipeline.model_facts.reader import context_length
from llm_pipeline.model_facts.words import ConfigWords
from llm_pipeline.serving.models.vllm_batcher import COMPILED_DIRECTORY, Batcher, Output, Settings

log = get_logger(__name__)

_VERSIONED = ("torch", "transformers", "tokenizers")
_FEW, _LIKELIEST = 8, 2
_REPEATED = 0.9
"""Share of its answers that an engine must repeat in smaller batches if its servers are to give them whole."""

_SURE_LEAD = 1.0
"""Nats that a token must lead by. Of SmolLM2's answers in FP8 with a scale for each token, two engines on H200 gave 54
to 74 % whole the same, and 90 to 100 % up to the first smaller lead."""

_POLL_SECONDS = 1.0
_GRAPH_TOKENS = 1024
"""Steps of up to so many tokens run as CUDA graphs: most steps with a prompt in them. vLLM's own default, twice the
sequences and at most 512, leaves those out: with 45 prompts of 256 tokens a second on an H200, 8B's first token came
after 46 ms, and after 29 with these graphs. They take 0.3 GiB more, and a second more to capture."""


class VllmBuilder:
    """The `vllm` engine builder."""

    def __init__(self) -> None:
        """Find vLLM, without importing it: its own process does.

        Raises:
            ModuleNotFoundError: This interpreter lacks it.
        """
        if find_spec("vllm") is None:
            raise ModuleNotFoundError("No module named 'vllm'", name="vllm")

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        quantization, target = read_quantization(inputs.checkpoint), inputs.target
        host = None if target.accelerator == "cpu" else require_target_host(target)
        context = context_length(ConfigWords(read_json(inputs.checkpoint / "config.json")))
        properties = runtime_properties(target, inputs.dtype, quantization)
        workspace = destination.parent / f"{destination.name}-workspace"
        log.info("vLLM loads the checkpoint", arguments=properties["arguments"])
        rules = read_model_rules(inputs.checkpoint)
        clock = PhaseClock()
        with clock.phase("load"):
            batcher = _load(inputs, properties, context, rules, workspace)
        try:
            with clock.phase("golden"):
                texts = _answers(batcher, inputs.golden)
                match = golden_match(inputs.golden, texts) if texts else None
                golden, repeated = _repeatable(batcher, inputs.golden, texts)
        finally:
            batcher.stop()  # its thread would keep this process alive
        destination.mkdir()
        if texts:
            write_golden(destination, golden)
        _keep_compiled(workspace, destination)
        said = batcher.facts
        facts = EngineFacts(
            bytes=sum(path.stat().st_size for path in destination.rglob("*") if path.is_file()),
            quantization=quantization.algorithm,
            kv_cache=str(said["kv_cache_dtype"]).replace("auto", inputs.dtype),
            context_length=context,
            device=host.gpus[0].name if host else platform.processor() or platform.machine(),
            versions={"vllm": str(said["vllm"]), **{name: metadata.version(name) for name in _VERSIONED}},
            seconds=clock.seconds,
            details={
                "checkpoint_bytes": sum(path.stat().st_size for path in inputs.checkpoint.glob("*.safetensors")),
                "kv_cache_blocks": batcher.blocks,
                "golden_match_fraction": match,
                "golden_prompts": len(golden),
                "golden_repeated_fraction": repeated,
                "block_tokens": int(said["block_tokens"]),
                "read_as": str(said["quantization"]),
            },
        )
        EngineDescription(
            facts=facts,
            target=target,
            runtime_properties=properties,
            rules=rules,
            host=host,
            checkpoint=inputs.checkpoint_ref,
        ).write(destination)
        return facts


def runtime_properties(target: Target, dtype: str, quantization: QuantizationMetadata) -> dict[str, str]:
    """VLLM's engine arguments, but for the model and the limits, as one JSON text; and on a CPU the threads.

    Args:
        target: Where it is served.
        dtype: The baseline's precision.
        quantization: How the checkpoint is quantized; vLLM finds out by itself, but for the KV cache.
    """
    runtime, parallelism = target.runtime, target.parallelism
    arguments: dict[str, Any] = {
        "dtype": dtype,
        "tensor_parallel_size": parallelism.tensor,
        "enable_expert_parallel": parallelism.expert is not None,
        "gpu_memory_utilization": runtime.kv_cache.free_memory_fraction,
        "enable_prefix_caching": runtime.kv_cache.reuse_blocks,
        "kv_cache_dtype": "fp8" if quantization.kv_cache == "FP8" else "auto",
        "enable_chunked_prefill": runtime.chunked_context,
        "enforce_eager": not runtime.cuda_graphs,
        "generation_config": "vllm",
        "load_format": "safetensors",
        "seed": 0,
        "trust_remote_code": False,
    }
    threads = {"threads": str(target.limits.threads)} if target.accelerator == "cpu" else {}
    if runtime.cuda_graphs and not threads:
        arguments["max_cudagraph_capture_size"] = max(_GRAPH_TOKENS, 2 * target.limits.maximum_sequences)
    arguments |= runtime.engine_args
    return {"arguments": json.dumps(arguments, sort_keys=True), **threads}


def _load(
    inputs: BuildInputs, properties: Mapping[str, str], context: int, rules: ModelRules, workspace: Path
) -> Batcher:
    limits = inputs.target.limits
    longest = min(limits.maximum_tokens_per_request, context)
    served = {"maximum_tokens_per_request": longest, "kv_cache_blocks": limits.kv_cache_blocks or 0}
    settings = Settings.of(properties, {**limits.model_dump(), **served}, end_tokens=rules.end_tokens)
    settings = replace(settings, workspace=workspace)
    check_directory(inputs.checkpoint)
    workspace.mkdir()
    # What vLLM compiles is found again by the model's name, too: it has the one that the server's view gives it.
    checkpoint = workspace / CHECKPOINT_DIRECTORY
    checkpoint.symlink_to(inputs.checkpoint.absolute())
    try:
        # vLLM's processes talk over loopback: they may connect, and read no files but these.
        start = partial(Batcher, checkpoint, settings)
        return confined(start, readable=(inputs.checkpoint, workspace), network=True)
    except (RuntimeError, OSError, ValueError) as error:
        problem = f"vLLM does not load the checkpoint: {error}"
        raise Unsupported(problem, where=str(inputs.checkpoint), hint="see its log") from error


def _keep_compiled(workspace: Path, destination: Path) -> None:
    """Keep what the model's code was traced to, and what vLLM found out of its class by importing itself once more.

    The graphs beside it, which take a server some ten seconds to compile, are found by absolute paths (vLLM 0.20 writes
    them into `vllm_compile_cache.py`), so a copy that vLLM took for its own would name files that are gone. Its single
    artifact with everything (`VLLM_USE_MEGA_AOT_ARTIFACT`) loaded in one place and ended the engine in another with
    torch 2.11, for which it is not meant.
    """
    for kept in ("torch_compile_cache/torch_aot_compile", "modelinfos"):
        if (workspace / "vllm" / kept).is_dir():
            shutil.copytree(workspace / "vllm" / kept, destination / COMPILED_DIRECTORY / kept)
    shutil.rmtree(workspace)


def _answers(
    batcher: Batcher, golden: Sequence[GoldenPrompt], at_once: int | None = None, *, as_far_as_sure: bool = False
) -> list[str]:
    """What is answered to golden prompts, all of them or so many at once; whole, or up to the first near tie."""
    tokenizer, answers = batcher.tokenizer, []
    size = at_once or max(1, len(golden))
    for start in range(0, len(golden), size):
        some = golden[start : start + size]
        prompts = [tokenizer.encode(one.prompt, add_special_tokens=True) for one in some]
        options = {"logprobs": _LIKELIEST} if as_far_as_sure else {}
        answers += _generate(batcher, prompts, [one.maximum_tokens for one in some], ignore_eos=False, **options)
    tokens = map(_sure_tokens if as_far_as_sure else _tokens, answers)
    return [tokenizer.decode(one, skip_special_tokens=True, clean_up_tokenization_spaces=False) for one in tokens]


def _repeatable(
    batcher: Batcher, golden: Sequence[GoldenPrompt], texts: list[str]
) -> tuple[list[GoldenPrompt], float | None]:
    """What a server can be held to, and the share of the answers that the engine repeats in smaller batches.

    Engines add in an order that depends on what else they compute, and on their start. Where that changes many answers,
    the format makes large differences of small ones, and no server gives these answers whole: then they count up to
    the first token that is only just likelier than another.
    """
    if not texts:
        return [], None
    pairs = zip(texts, _answers(batcher, golden, _FEW), strict=True)
    repeated = sum(one == other for one, other in pairs) / len(texts)
    whole = answered(golden, texts)
    if repeated >= _REPEATED:
        return whole, repeated
    openings = opened(golden, _answers(batcher, golden, _FEW, as_far_as_sure=True))
    log.warning("the engine does not repeat itself in other batches: answers count as far as they are sure",
                repeated=repeated, golden_prompts=len(openings))  # fmt: skip
    return openings or whole, repeated


def _tokens(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def _sure_tokens(outputs: Sequence[Output]) -> list[int]:
    """Those before the first that leads the next likeliest one by too little."""
    scores = [score for output in outputs for score in output.scores]
    return [token for token, *_ in takewhile(lambda score: _lead(score[2]) >= _SURE_LEAD, scores)]


def _lead(likeliest: Sequence[tuple[int, float]]) -> float:
    (_, first), (_, second), *_ = likeliest
    return first - second


def _generate(
    batcher: Batcher, prompts: Sequence[list[int]], most: Sequence[int], **options: Any
) -> list[list[Output]]:
    """The outputs to each prompt, all of which are asked at once."""
    answers: list[list[Output]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        batcher.submit(str(number), prompt, most[number], **options)
    running = len(prompts)
    while running:
        for output in batcher.outputs(_POLL_SECONDS):
            answers[int(output.name)].append(output)
            if output.error:
                raise IntegrityError(f"the model failed: {output.error}")
            running -= bool(output.finish_reason)
        if not batcher.is_running:
            raise IntegrityError("the model's thread ended", hint="look at its log")
    return answers
