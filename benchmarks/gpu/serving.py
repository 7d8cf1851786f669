"""The load gate against a GPU: a real Triton server, Transformers behind it, and the client and the verdict of a stage.

    python -m benchmarks.gpu.serving --work /tmp/bench --triton-home .envs/triton --stub .envs/model/bin/python
    python -m benchmarks.gpu.serving --work /tmp/smoke --triton-home .envs/triton --stub .envs/model/bin/python --smoke

The model has the shapes of Llama-3-8B (`--shape 1b`: Llama-3.2-1B) and random weights, which is enough for speed. It is
packaged as a release's repository is, then driven through floor, ceiling, target, search and confirmation. `--stub` is
the interpreter of Triton's python backend: numpy 1.26, torch and transformers. One line a goal; exit code 1 when one
is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.goals import at_most, goal
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.policy import LoadTestPolicy, RateSearch, ServiceLevel
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.config.workload import UniformLengths, Workload
from llm_pipeline.loadtest.findings import format_load_test
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.outcome import LoadTestOutcome, write_outcome
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.loadtest.session import run_session
from llm_pipeline.loadtest.windows import Windows
from llm_pipeline.loadtest.workload import TrafficSource
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts
from llm_pipeline.planning.roofline import RooflineEngine, engine_of, most_tokens_per_second, physical_limits
from llm_pipeline.planning.speed import Tokens
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import RunningServer, start_server, stop_server

PORTS = ServerPorts(http=18700, grpc=18701, metrics=18702)
PROMPT_TOKENS, OUTPUT_TOKENS = (192, 320), (48, 80)
RECIPE = QuantizationRecipe(name="none", weights="none")
SHAPES = ("8b", "1b")
LAG_MILLISECONDS = 50.0


@dataclass(frozen=True)
class Run:
    """What is run, from the command line."""

    place: Path
    triton_home: Path
    stub: Path
    shape: str
    smoke: bool
    accelerator: str
    rate: float
    users: int
    seconds: float
    graphs: bool
    attention: str

    @property
    def model(self) -> Path:
        """The checkpoint's directory."""
        return self.place / f"model-{'smoke' if self.smoke else self.shape}"

    @property
    def target(self) -> Target:
        """Where it is served."""
        limits = EngineLimits(
            maximum_sequences=self.users, maximum_queued_requests=4 * self.users, maximum_tokens_per_request=1024,
            maximum_batched_tokens=2048,
        )  # fmt: skip
        place = {"accelerator": "cpu", "accelerator_count": 0} if self.smoke else {"accelerator": self.accelerator}
        return Target(name="host", engine="transformers_torch", limits=limits, **place)

    @property
    def properties(self) -> dict[str, str]:
        """How the served model loads it."""
        on_gpu = not self.smoke
        return {
            "device": "cuda" if on_gpu else "cpu", "dtype": "bfloat16" if on_gpu else "float32",
            "attention": self.attention if on_gpu else "paged|sdpa",
            "cuda_graphs": str(on_gpu and self.graphs).lower(), "threads": "1",
        }  # fmt: skip


def main() -> int:
    """Package, serve, test and judge."""
    run = _parse()
    run.place.mkdir(parents=True, exist_ok=True)
    source, workload = _traffic(run)
    repository = _package(run)
    server = _serve(run, repository)
    try:
        outcome, seconds = _test(run, server, source, workload)
    finally:
        stop_server(run.place / "slot")
    policy = _policy(run)
    (run.place / "records").mkdir(exist_ok=True)
    write_outcome(run.place / "records", outcome)
    print(format_load_test(outcome, policy))
    _print_windows(outcome)
    print(f"server ready in {server.ready_seconds:.1f} s, session of {seconds:.0f} s")
    return 0 if all([*_goals(outcome), _roofline_goal(run, outcome)]) else 1


def _traffic(run: Run) -> tuple[TrafficSource, Workload]:
    from benchmarks.gpu.llama_8b import word_tokenizer
    from benchmarks.gpu.llama_words import random_words

    draw = random.Random(0)  # noqa: S311 - a draw, no secret
    lines = [json.dumps({"prompt": random_words(draw, 64)}) + "\n" for _ in range(400)]
    (run.place / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    workload = Workload(
        prompts="prompts.jsonl", rate_per_second=run.rate, duration_seconds=run.seconds,
        prompt_tokens=UniformLengths(minimum=PROMPT_TOKENS[0], maximum=PROMPT_TOKENS[1]), output_tokens=OUTPUT_TOKENS,
        warmup_requests=run.users,
    )  # fmt: skip
    tokenizer = word_tokenizer()
    return TrafficSource(workload, run.place, count_tokens=lambda text: len(tokenizer.encode(text))), workload


def _package(run: Run) -> Path:
    """The repository of the checkpoint, which is made first if it is not there."""
    from benchmarks.gpu.llama_8b import LLAMA_3_8B, SMOKE, Shape, write_checkpoint

    if not run.model.is_dir():
        small = Shape(hidden=2048, intermediate=8192, layers=16, heads=32, key_value_heads=8, vocabulary=128_256)
        parameters = write_checkpoint(run.model, SMOKE if run.smoke else {"8b": LLAMA_3_8B, "1b": small}[run.shape])
        print(f"made a checkpoint of {parameters / 1e9:.2f} billion parameters", flush=True)
    engine, repository = run.place / "engine", run.place / f"repository-{time.time_ns()}"
    engine.mkdir(exist_ok=True)
    facts = EngineFacts(
        builder="transformers_torch", bytes=0, weight_format="native", quantization=None, kv_cache="bfloat16",
        context_length=8192, device=run.accelerator, versions={}, seconds={},
    )  # fmt: skip
    EngineDescription(
        facts=facts, target=run.target, runtime_properties=run.properties,
        checkpoint=ArtifactRef(kind="checkpoint", digest="c" * 64),
    ).write(engine)  # fmt: skip
    golden = [GoldenPrompt(prompt="w1 w2", completion="w3", maximum_tokens=1)]
    ref = ArtifactRef(kind="engine", digest="e" * 64)
    write_repository(engine, golden, {"weight_format": "native"}, run.target, repository, engine_ref=ref)
    return repository


def _serve(run: Run, repository: Path) -> RunningServer:
    server = start_server(
        repository, PORTS, triton_home=run.triton_home, python=run.stub, state=run.place / "slot",
        environment={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        links={"llm/1/checkpoint": run.model.absolute()}, wait_seconds=240,
    )  # fmt: skip
    print(f"serving {run.model.name}: {run.properties}, ready in {server.ready_seconds:.1f} s", flush=True)
    return server


def _test(run: Run, server: RunningServer, source: TrafficSource, workload: Workload) -> tuple[LoadTestOutcome, float]:
    endpoint = server.endpoint
    started = time.monotonic()
    with LoadClient(endpoint, timeout_seconds=60, server_pids=[server.pid]) as client:
        windows = Windows(client, source, workload, _policy(run))
        outcome = run_session(windows, users=run.users, physics=_physics(run, workload))
    return outcome, time.monotonic() - started


def _policy(run: Run) -> LoadTestPolicy:
    """A chat's service level, and short windows: device time is what is scarce here."""
    level = ServiceLevel(first_token_milliseconds=1000, time_per_output_token_milliseconds=60)
    return LoadTestPolicy(
        service_level=level, attainment=0.9, minimum_requests=100, maximum_error_fraction=0.01, seeds=2,
        maximum_client_lag_milliseconds=LAG_MILLISECONDS, maximum_extension=2, confirmation_multiple=1,
        search=RateSearch(maximum_multiple=6, resolution=0.2, window_seconds=run.seconds / 2, minimum_requests=50),
        confirmed_share=0.85,
    )  # fmt: skip


def _facts(run: Run) -> ModelFacts | None:
    return None if run.smoke else read_facts(ModelDocuments(json.loads((run.model / "config.json").read_bytes())))


def _physics(run: Run, workload: Workload) -> PhysicalLimits | None:
    return physical_limits(_facts(run), run.target, RECIPE, workload)


def _print_windows(outcome: LoadTestOutcome) -> None:
    print("| window | rate/s or users | requests | failed | good | first token p50/p95, ms | per token p50/p95, ms | "
          "answers/s | output tokens/s | KV cache | GPU busy | lag p99, ms |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for window in outcome.windows:
        pace = f"{window.concurrency} users" if window.concurrency else f"{window.offered_per_second:.1f}"
        print(f"| {window.name} | {pace} | {window.requests} | {window.failed} | {window.good_fraction:.3f} "
              f"| {_quantiles(window.first_token)} | {_quantiles(window.time_per_output_token)} "
              f"| {window.answered_per_second:.1f} | {window.output_tokens_per_second:.0f} "
              f"| {_share(window.server.kv_cache_fraction)} | {_share(window.server.gpu_utilization_fraction)} "
              f"| {window.client_lag_p99_milliseconds:.1f} |", flush=True)  # fmt: skip


def _quantiles(latency: object) -> str:
    if latency is None:
        return ""
    by_quantile: Mapping[float, float] = {q.quantile: q.milliseconds for q in latency.quantiles}  # type: ignore[attr-defined]
    return "/".join(f"{by_quantile[quantile]:.0f}" for quantile in (0.5, 0.95) if quantile in by_quantile)


def _share(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction:.1%}"


def _goals(outcome: LoadTestOutcome) -> list[bool]:
    verdict, windows = outcome.judgement.verdict, outcome.windows
    void = [window.name for window in windows if window.void]
    last_void = bool(windows) and bool(windows[-1].void)
    failed = sum(window.failed for window in windows)
    lag = max(window.client_lag_p99_milliseconds for window in windows)
    return [
        goal("client", f"{len(void)} void windows", "the last one is none", met=not last_void),
        at_most("client_lag_p99", lag, LAG_MILLISECONDS, "ms"),
        goal("verdict", str(verdict), "GO or NO_GO", met=verdict in (Verdict.GO, Verdict.NO_GO)),
        goal("failed_requests", str(failed), "0", met=failed == 0),
    ]


def _roofline_goal(run: Run, outcome: LoadTestOutcome) -> bool:
    ceiling, facts = outcome.window("ceiling"), _facts(run)
    if ceiling is None or facts is None:
        return goal("roofline", "not on a GPU", "a share below 1", met=run.smoke)
    engine: RooflineEngine = engine_of(facts, run.target, RECIPE)
    tokens = Tokens(prompt=sum(PROMPT_TOKENS) // 2, output=sum(OUTPUT_TOKENS) // 2)
    bound = most_tokens_per_second(engine, run.users, tokens)
    share = ceiling.output_tokens_per_second / bound
    said = f"{share:.1%} of {bound:.0f} tokens/s at {run.users} users"
    return goal("roofline", said, "a share below 1", met=0 < share < 1)


def _parse() -> Run:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory for the model and the server's slot")
    parser.add_argument("--triton-home", type=Path, required=True, help="the unpacked nvidia-pytriton wheel")
    parser.add_argument("--stub", type=Path, required=True, help="Python of the stub: numpy 1.26, torch, transformers")
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU: tries the script")
    parser.add_argument("--accelerator", default="H200-SXM-141GB", help="the GPU's name in the catalog")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second of the target window")
    parser.add_argument("--users", type=int, default=128, help="requests in the batch, and users of the ceiling")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a window")
    parser.add_argument("--attention", default="paged|varlen")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch every kernel by itself")
    options = vars(parser.parse_args())
    return Run(place=options.pop("work").absolute(), **options)


if __name__ == "__main__":
    sys.exit(main())
