"""vLLM behind our Triton beside `vllm serve`, on one GPU: same model, requests, service level.

    python -m benchmarks.gpu.vllm_serving --work WORK --triton-home .envs/triton
    python -m benchmarks.gpu.vllm_serving ... --fp8 EXPORT --formats bf16 fp8 --peer bf16 fp8

Run it with an interpreter that has vLLM and numpy 1.26 (Triton's stub needs it). The model has the shapes of
Llama-3-8B and random weights, which is enough for speed; `--fp8` names modelopt's export of it. Each engine is built
by the `vllm` builder, packaged as a release's repository is, and served by the bundled Triton; then vLLM's own OpenAI
server serves the same checkpoint. Streamed requests arrive as
a Poisson process at a given rate, or are sent by users who ask one after the other, from separate processes. One line
a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tritonclient.grpc.model_config_pb2  # noqa: F401  # a repository is written with it, after a build of 100 s

from benchmarks.goals import at_least, at_most, goal
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.config.target import EngineLimits, Parallelism, Target
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import RunningServer, start_server, stop_server

PORTS = ServerPorts(http=18700, grpc=18701, metrics=18702, openai=18703)
PEER_PORT = 18710
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 128
FIRST_TOKEN_SECONDS, TOKEN_SECONDS = 1.0, 0.06
PROCESSES = 8
SPEEDUP_USERS, SOME_USERS = 128, 64
Dialect = Literal["triton", "openai"]


@dataclass(frozen=True)
class Answer:
    """One request: when its first text came, and its last, in seconds from its start; whether it was complete.

    `share` is how much of its time was within what is counted.
    """

    first: float
    last: float
    complete: bool
    share: float = 1.0

    @property
    def good(self) -> bool:
        """Whether it kept the service level."""
        each = (self.last - self.first) / (OUTPUT_TOKENS - 1)
        return self.complete and self.first <= FIRST_TOKEN_SECONDS and each <= TOKEN_SECONDS


@dataclass(frozen=True)
class Load:
    """Requests of a Poisson process, so many a second, or of so many users who ask one after the other."""

    amount: float
    users: bool = False

    def __str__(self) -> str:
        return f"{self.amount:g} users" if self.users else f"{self.amount:g} requests/s"


@dataclass(frozen=True)
class Served:
    """A server under test: `pid` is of its first process."""

    name: str
    dialect: Dialect
    port: int
    pid: int


@dataclass(frozen=True)
class Figures:
    """What users saw of a server under a load."""

    goodput: float
    tokens_per_second: float
    first_p50: float
    failed: int


Seen = dict[tuple[str, Load], Figures]


def main() -> int:
    """Build, serve each way, measure, compare."""
    options = _parse()
    options.work.mkdir(parents=True, exist_ok=True)
    loads = [*map(Load, options.rates), *(Load(users, users=True) for users in options.users)]
    checkpoints = {"bf16": _model(options)} | ({"fp8": options.fp8} if options.fp8 else {})
    seen: Seen = {}
    for name in options.formats:
        checkpoint = checkpoints[name]
        repository, engine = package(options, checkpoint)
        with _our_server(options, repository, checkpoint) as server:
            print(f"ours {name}: ready in {server.ready_seconds:.1f} s", flush=True)
            ours = Served(f"ours {name}", "triton", PORTS.http, server.pid)
            seen |= {(name, load): _measure(ours, load, options) for load in loads}
        if name in options.peer:
            with _peer(options, checkpoint, engine) as pid:
                theirs = Served(f"vllm serve {name}", "openai", PEER_PORT, pid)
                seen |= {(theirs.name, load): _measure(theirs, load, options) for load in loads}
    if options.figures:
        rows = [{"server": name, "load": str(load), **asdict(figures)} for (name, load), figures in seen.items()]
        options.figures.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if all(_goals(seen)) else 1


def _goals(seen: Seen) -> list[bool]:
    met = []
    for (name, load), mine in seen.items():
        if name in ("bf16", "fp8"):
            met.append(goal(f"vllm_failed ({name}, {load})", f"{mine.failed}", "0", met=mine.failed == 0))
        if theirs := seen.get((f"vllm serve {name}", load)):
            ratio = mine.goodput / theirs.goodput if theirs.goodput else 0.0
            met.append(at_least(f"vllm_goodput_ratio ({name}, {load})", ratio, 0.95, ""))
            if not load.users:
                more = 1e3 * (mine.first_p50 - theirs.first_p50)
                met.append(at_most(f"vllm_first_token_p50_more ({name}, {load})", more, 5.0, "ms"))
    most = Load(SPEEDUP_USERS, users=True)
    if ("fp8", most) in seen and ("bf16", most) in seen:
        speedup = seen["fp8", most].tokens_per_second / seen["bf16", most].tokens_per_second
        met.append(at_least("vllm_fp8_to_bf16_tokens", speedup, 1.25, "x"))
    return met


def _model(options: argparse.Namespace) -> Path:
    from benchmarks.gpu.llama_8b import LLAMA_3_8B, SMOKE, write_checkpoint

    model: Path = options.work / ("model-smoke" if options.smoke else "model-8b")
    if not model.is_dir():
        shape = SMOKE if options.smoke else LLAMA_3_8B
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # this process must not keep the GPU's memory
            parameters = pool.apply(write_checkpoint, (model, shape))
        print(f"made a checkpoint of {parameters / 1e9:.2f} billion parameters", flush=True)
    return model


def _target(options: argparse.Namespace) -> Target:
    limits = EngineLimits(
        maximum_sequences=options.sequences,
        maximum_queued_requests=4 * options.sequences,
        maximum_tokens_per_request=1024,
        maximum_batched_tokens=8192 if not options.smoke else 1024,
    )
    runtime: dict[str, Any] = {"cuda_graphs": False} if options.eager or options.smoke else {}
    if options.smoke:
        runtime |= {"kv_cache": {"free_memory_fraction": 0.2}}
        return Target(
            name="smoke", accelerator="cpu", accelerator_count=0, engine="vllm", limits=limits, runtime=runtime
        )
    return Target(
        name="h200_vllm",
        accelerator=options.accelerator,
        accelerator_count=options.tensor_parallel,
        parallelism=Parallelism(tensor=options.tensor_parallel),
        engine="vllm",
        limits=limits,
        runtime=runtime,
    )


def package(options: argparse.Namespace, model: Path) -> tuple[Path, EngineDescription]:
    """The repository of a checkpoint, with its engine built; returns what the engine is as well."""
    stamp = time.time_ns()
    engine, repository = options.work / f"engine-{stamp}", options.work / f"repository-{stamp}"
    inputs = BuildInputs(
        model, _target(options), dtype="bfloat16", checkpoint_ref=ArtifactRef(kind="checkpoint", digest="c" * 64)
    )
    facts = engine_builder("vllm").build(inputs, engine)
    print(f"built: {facts.model_dump_json()}", flush=True)
    golden = [GoldenPrompt(prompt="w1 w2", completion="w3", maximum_tokens=1)]
    ref = ArtifactRef(kind="engine", digest="e" * 64)
    write_repository(engine, golden, {"weight_format": "native"}, _target(options), repository, engine_ref=ref)
    return repository, EngineDescription.read(engine)


@contextmanager
def _our_server(options: argparse.Namespace, repository: Path, model: Path) -> Iterator[RunningServer]:
    slot = options.work / "slot"
    server = start_server(
        repository, PORTS, triton_home=options.triton_home, python=Path(sys.executable), state=slot,
        links={"llm/1/checkpoint": model.absolute()}, wait_seconds=300,
    )  # fmt: skip
    try:
        yield server
    finally:
        stop_server(slot)


@contextmanager
def _peer(options: argparse.Namespace, model: Path, engine: EngineDescription) -> Iterator[int]:
    """The OpenAI server of vLLM, with the engine arguments that ours had."""
    arguments = json.loads(engine.runtime_properties["arguments"])
    limits, graphs = engine.target.limits, arguments.get("max_cudagraph_capture_size")
    flags = [
        f"--dtype={arguments['dtype']}", f"--gpu-memory-utilization={arguments['gpu_memory_utilization']}",
        f"--max-num-seqs={limits.maximum_sequences}", f"--max-model-len={limits.maximum_tokens_per_request}",
        f"--max-num-batched-tokens={limits.maximum_batched_tokens}", "--generation-config=vllm",
        f"--tensor-parallel-size={arguments['tensor_parallel_size']}",
        *([f"--max-cudagraph-capture-size={graphs}"] if graphs else []),
        "--disable-uvicorn-access-log", *(["--enforce-eager"] if arguments["enforce_eager"] else []),
    ]  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", "--served-model-name=llm",
        "--host=127.0.0.1", f"--port={PEER_PORT}", *flags,
    ]  # fmt: skip
    with _listening("vllm serve", command, PEER_PORT, "/health", options.work / "peer.log") as pid:
        yield pid


@contextmanager
def _listening(name: str, command: list[str], port: int, path: str, log: Path) -> Iterator[int]:
    """A server in a process of its own, from its first good answer on; gives its id."""
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        while asyncio.run(_status(port, path)) != b"200":
            if process.poll() is not None or time.monotonic() - started > 300:
                raise SystemExit(f"{name} did not start:\n" + log.read_text()[-3000:])
            time.sleep(1)
        print(f"{name}: ready in {time.monotonic() - started:.1f} s", flush=True)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def _status(port: int, path: str) -> bytes:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
    except OSError:
        return b""
    return line.split(b" ")[1] if b" " in line else b""


def _measure(server: Served, load: Load, options: argparse.Namespace) -> Figures:
    """Send requests for some seconds; what started in the first quarter does not count."""
    share = Load(load.amount / PROCESSES, users=load.users)
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        sent = pool.map(partial(_requests, server.dialect, server.port, share, options.seconds), range(PROCESSES))
    answers = [answer for one in sent for answer in one]
    counted = options.seconds * 0.75
    good = [one for one in answers if one.good]
    complete = [one for one in answers if one.complete]
    figures = Figures(
        goodput=sum(one.share for one in good) * OUTPUT_TOKENS / counted,
        tokens_per_second=sum(one.share for one in complete) * OUTPUT_TOKENS / counted,
        first_p50=statistics.median(one.first for one in complete) if complete else float("inf"),
        failed=len(answers) - len(complete),
    )
    print(
        f"{server.name}: {load}, {len(answers)} answers, {figures.tokens_per_second:.0f} tokens/s, goodput "
        f"{figures.goodput:.0f}, first token p50 {1e3 * figures.first_p50:.1f} ms, failed {figures.failed}",
        flush=True,
    )
    return figures


def _requests(dialect: Dialect, port: int, load: Load, seconds: float, seed: int) -> list[Answer]:
    return asyncio.run((_asking if load.users else _arriving)(dialect, port, load.amount, seconds, seed))


async def _arriving(dialect: Dialect, port: int, rate: float, seconds: float, seed: int) -> list[Answer]:
    draw = random.Random(seed)  # noqa: S311 - prompts, no secret
    begun, due, asked = time.monotonic(), 0.0, []
    while (due := due + draw.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, begun + due - time.monotonic()))
        asked.append((due, asyncio.create_task(_ask(dialect, port, _prompt(draw)))))
    return [await answer for due, answer in asked if due > seconds / 4]


async def _asking(dialect: Dialect, port: int, users: float, seconds: float, seed: int) -> list[Answer]:
    draw, begun = random.Random(seed), time.monotonic()  # noqa: S311 - prompts, no secret
    answers: list[Answer] = []

    async def user() -> None:
        while (start := time.monotonic() - begun) < seconds:
            answer = await _ask(dialect, port, _prompt(draw))
            end = start + answer.last
            # Users ask in step: one round of answers more or less that end in a window of 10 s is a tenth of them.
            if (within := min(end, seconds) - max(start, seconds / 4)) > 0:
                answers.append(replace(answer, share=within / answer.last))

    await asyncio.gather(*(user() for _ in range(max(1, round(users)))))
    return answers


def _prompt(draw: random.Random) -> str:
    return " ".join(f"w{draw.randrange(4000)}" for _ in range(PROMPT_TOKENS - 1))


async def _ask(dialect: Dialect, port: int, prompt: str) -> Answer:
    if dialect == "triton":
        path = "/v2/models/llm/generate_stream"
        fields = {"text_input": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True, "ignore_eos": True}
    else:
        path = "/v1/completions"
        fields = {
            "model": "llm", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True, "ignore_eos": True,
            "temperature": 0,
        }  # fmt: skip
    body = json.dumps(fields).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    started, first, seen = time.monotonic(), float("inf"), b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        writer.write(head.encode() + body)
        while chunk := await reader.read(65536):
            if first == float("inf") and b"data:" in chunk:
                first = time.monotonic() - started
            seen = (seen + chunk)[-4096:]
        writer.close()
    except OSError:
        pass
    complete = first < float("inf") and b'"length"' in seen.replace(b" ", b"")
    return Answer(first, time.monotonic() - started, complete)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory for the model and the server's slot")
    parser.add_argument("--triton-home", type=Path, required=True, help="the unpacked nvidia-pytriton wheel")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on vLLM for CPUs: tries the script")
    parser.add_argument("--accelerator", default="H200-SXM-141GB", help="the GPU's name in the catalog")
    parser.add_argument("--rates", type=float, nargs="+", default=[20.0, 45.0], help="requests a second")
    parser.add_argument("--users", type=int, nargs="*", default=[SOME_USERS, SPEEDUP_USERS])
    parser.add_argument("--fp8", type=Path, help="modelopt's FP8 export of the model")
    parser.add_argument("--formats", nargs="+", choices=("bf16", "fp8"), default=["bf16"], help="what ours serves")
    parser.add_argument("--peer", nargs="*", choices=("bf16", "fp8"), default=["bf16"], help="what vllm serve serves")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of the engine")
    parser.add_argument("--eager", action="store_true", help="neither compile nor capture CUDA graphs")
    parser.add_argument("--figures", type=Path, help="write all figures to this file, as JSON")
    parser.add_argument("--sequences", type=int, default=128, help="requests in the batch")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    options = parser.parse_args()
    options.work = options.work.absolute()
    options.fp8 = options.fp8.absolute() if options.fp8 else None
    return options


if __name__ == "__main__":
    sys.exit(main())
