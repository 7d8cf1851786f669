"""vLLM behind our Triton beside `vllm serve`, on one GPU: the same model, engine arguments, requests and service level.

    python -m benchmarks.gpu.vllm_serving --work /tmp/bench --triton-home .envs/triton

Run it with an interpreter that has vLLM and numpy 1.26 (Triton's stub needs it). The model has the shapes of
Llama-3-8B and random weights, which is enough for speed. The engine is built by the `vllm` builder, packaged as a
release's repository is, and served by the bundled Triton; then vLLM's own OpenAI server serves the same checkpoint.
Streamed requests arrive as a Poisson process at a given rate, sent by separate processes that wait for no answer.
One line a goal; exit code 1 when one is missed.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.goals import at_least, at_most, goal
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import start_server, stop_server

PORTS = ServerPorts(http=18700, grpc=18701, metrics=18702)
PEER_PORT = 18710
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 128
FIRST_TOKEN_SECONDS, TOKEN_SECONDS = 1.0, 0.06
PROCESSES = 8


@dataclass(frozen=True)
class Answer:
    """One request: when its first text came, and its last, in seconds from its start; whether it was complete."""

    first: float
    last: float
    complete: bool

    @property
    def good(self) -> bool:
        """Whether it kept the service level."""
        each = (self.last - self.first) / (OUTPUT_TOKENS - 1)
        return self.complete and self.first <= FIRST_TOKEN_SECONDS and each <= TOKEN_SECONDS


@dataclass(frozen=True)
class Figures:
    """What users saw of a server at a rate of requests a second."""

    rate: float
    goodput: float
    tokens_per_second: float
    first_p50: float
    failed: int


def main() -> int:
    """Build, serve both ways, measure, compare."""
    options = _parse()
    options.work.mkdir(parents=True, exist_ok=True)
    model = _model(options)
    repository, engine = _package(options, model)
    ours, peer = {}, {}
    with _our_server(options, repository, model) as ready:
        print(f"ours: ready in {ready:.1f} s", flush=True)
        for rate in options.rates:
            ours[rate] = _measure("ours", PORTS.http, rate, options.seconds)
    with _peer(options, model, engine):
        for rate in options.rates:
            peer[rate] = _measure("peer", PEER_PORT, rate, options.seconds)
    met = []
    for rate in options.rates:
        mine, theirs = ours[rate], peer[rate]
        ratio = mine.goodput / theirs.goodput if theirs.goodput else 0.0
        met.append(at_least(f"vllm_goodput_ratio_{rate:g}", ratio, 0.95, ""))
        met.append(at_most(f"vllm_first_token_p50_more_{rate:g}", 1e3 * (mine.first_p50 - theirs.first_p50), 5.0, "ms"))
        met.append(goal(f"vllm_failed_{rate:g}", f"{mine.failed}", "0", met=mine.failed == 0))
    return 0 if all(met) else 1


def _model(options: argparse.Namespace) -> Path:
    from benchmarks.gpu.llama_8b import LLAMA_3_8B, SMOKE, word_tokenizer, write_checkpoint

    model: Path = options.work / ("model-smoke" if options.smoke else "model-8b")
    if not model.is_dir():
        shape = SMOKE if options.smoke else LLAMA_3_8B
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # this process must not keep the GPU's memory
            parameters = pool.apply(write_checkpoint, (model, shape))
        print(f"made a checkpoint of {parameters / 1e9:.2f} billion parameters", flush=True)
        size = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        word_tokenizer(size).save_pretrained(model)  # random weights write any token: each must have a text
    return model


def _target(options: argparse.Namespace) -> Target:
    limits = EngineLimits(
        maximum_sequences=options.sequences,
        maximum_queued_requests=4 * options.sequences,
        maximum_tokens_per_request=1024,
        maximum_batched_tokens=8192 if not options.smoke else 1024,
    )
    if options.smoke:
        runtime = {"cuda_graphs": None, "kv_cache": {"free_memory_fraction": 0.2}}
        return Target(
            name="smoke", accelerator="cpu", accelerator_count=0, engine="vllm", limits=limits, runtime=runtime
        )
    return Target(name="h200_vllm", accelerator=options.accelerator, engine="vllm", limits=limits)


def _package(options: argparse.Namespace, model: Path) -> tuple[Path, EngineDescription]:
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
def _our_server(options: argparse.Namespace, repository: Path, model: Path) -> Iterator[float]:
    slot = options.work / "slot"
    server = start_server(
        repository, PORTS, triton_home=options.triton_home, python=Path(sys.executable), state=slot,
        links={"llm/1/checkpoint": model.absolute()}, wait_seconds=300,
        environment=_variables(options),
    )  # fmt: skip
    try:
        yield server.ready_seconds
    finally:
        stop_server(slot)


def _variables(options: argparse.Namespace) -> dict[str, str]:
    return dict(one.split("=", 1) for one in options.variable)


@contextmanager
def _peer(options: argparse.Namespace, model: Path, engine: EngineDescription) -> Iterator[None]:
    """The OpenAI server of vLLM, with the engine arguments that ours had."""
    arguments = json.loads(engine.runtime_properties["arguments"])
    limits = engine.target.limits
    flags = [
        f"--dtype={arguments['dtype']}", f"--gpu-memory-utilization={arguments['gpu_memory_utilization']}",
        f"--max-num-seqs={limits.maximum_sequences}", f"--max-model-len={limits.maximum_tokens_per_request}",
        f"--max-num-batched-tokens={limits.maximum_batched_tokens}", "--generation-config=vllm",
        "--disable-uvicorn-access-log", *(["--enforce-eager"] if arguments["enforce_eager"] else []),
    ]  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", "--served-model-name=llm",
        "--host=127.0.0.1", f"--port={PEER_PORT}", *flags,
    ]  # fmt: skip
    started = time.monotonic()
    with (options.work / "peer.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        while asyncio.run(_status(PEER_PORT, "/health")) != b"200":
            if process.poll() is not None or time.monotonic() - started > 300:
                raise SystemExit("the peer did not start:\n" + (options.work / "peer.log").read_text()[-3000:])
            time.sleep(1)
        print(f"peer: ready in {time.monotonic() - started:.1f} s", flush=True)
        yield
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


def _measure(name: str, port: int, rate: float, seconds: float) -> Figures:
    """Requests of a Poisson process; what started in the first quarter does not count."""
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        shares = pool.map(partial(_requests, name, port, rate / PROCESSES, seconds), range(PROCESSES))
        answers = [answer for share in shares for answer in share]
    counted = seconds * 0.75
    good = [one for one in answers if one.good]
    complete = [one for one in answers if one.complete]
    figures = Figures(
        rate=rate,
        goodput=len(good) * OUTPUT_TOKENS / counted,
        tokens_per_second=len(complete) * OUTPUT_TOKENS / counted,
        first_p50=statistics.median(one.first for one in complete) if complete else float("inf"),
        failed=len(answers) - len(complete),
    )
    print(
        f"{name}: {rate:g} requests/s, {len(answers)} answers, {figures.tokens_per_second:.0f} tokens/s, goodput "
        f"{figures.goodput:.0f}, first token p50 {1e3 * figures.first_p50:.1f} ms, failed {figures.failed}",
        flush=True,
    )
    return figures


def _requests(name: str, port: int, rate: float, seconds: float, seed: int) -> list[Answer]:
    return asyncio.run(_arriving(name, port, rate, seconds, seed))


async def _arriving(name: str, port: int, rate: float, seconds: float, seed: int) -> list[Answer]:
    draw = random.Random(seed)  # noqa: S311 - prompts, no secret
    begun, due, asked = time.monotonic(), 0.0, []
    while (due := due + draw.expovariate(rate)) < seconds:
        prompt = " ".join(f"w{draw.randrange(4000)}" for _ in range(PROMPT_TOKENS - 1))
        await asyncio.sleep(max(0.0, begun + due - time.monotonic()))
        asked.append((due, asyncio.create_task(_ask(name, port, prompt))))
    return [await answer for due, answer in asked if due > seconds / 4]


async def _ask(name: str, port: int, prompt: str) -> Answer:
    if name == "ours":
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
    parser.add_argument("--sequences", type=int, default=128, help="requests in the batch")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--variable", action="append", default=[], help="NAME=VALUE for the server's environment")
    options = parser.parse_args()
    options.work = options.work.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
