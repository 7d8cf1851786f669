"""Our CPU engine beside `vllm serve` of vLLM's CPU build: tokens a second of one model, in the same run.

    make vllm && .envs/control/bin/python benchmarks/cpu_engines.py [--checkpoint DIR]

Both serve SmolLM2-135M-Instruct on all cores: ours in weights and activations of 8 bits, as `configs/targets/cpu.yaml`
says, vLLM in bfloat16. They are asked by turns, by `/v1/completions`, for greedy answers of 64 tokens: 1, 8 and 32 at a
time. The other one is suspended meanwhile: for a second after its answers `vllm serve` keeps a core busy. Judged by
medians; one line a goal, and exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import numpy as np
import psutil
from goals import at_least

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.config.target import EngineLimits, RuntimeOptions, Target
from llm_pipeline.demo.services import CHAT, DemoLayout, DemoModel
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.triton_server import RunningServer, start_server, stop_server

REPOSITORY = Path(__file__).resolve().parents[1]
MODEL_PYTHON = REPOSITORY / ".envs" / "model" / "bin" / "python"
PLACE = REPOSITORY / ".pipeline" / "cpu_engines"
AT_ONCE, TOKENS = (1, 8, 32), 64
PROMPT = "Write a short story about a lighthouse, a storm and traveller number {}."
VLLM = REPOSITORY / ".envs" / "vllm" / "bin" / "vllm"
START_SECONDS = 600


def target(threads: int) -> Target:
    """As `configs/targets/cpu.yaml` has it."""
    limits = EngineLimits(
        maximum_sequences=32, maximum_tokens_per_request=2048, maximum_batched_tokens=512,
        maximum_queued_requests=512, threads=threads,
    )  # fmt: skip
    return Target(
        name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu", weight_format="int8", limits=limits,
        runtime=RuntimeOptions(engine_args={"DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}),
    )  # fmt: skip


def build(checkpoint: Path, threads: int, destination: Path) -> None:
    """Build the engine, in the model environment."""
    ref = ArtifactRef(kind="checkpoint", digest="0" * 64)
    inputs = BuildInputs(checkpoint=checkpoint, target=target(threads), dtype="float16", checkpoint_ref=ref)
    engine_builder("openvino_cpu").build(inputs, destination)


def in_model_environment(*arguments: str) -> None:
    """Run Python there."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([str(MODEL_PYTHON), *arguments], cwd=REPOSITORY, env=environment, check=True, stdout=sys.stderr)


def demo_model(model: DemoModel) -> Path:
    """A demo's model where the demo made it already, else one of our own."""
    if (made := DemoLayout(model=model).checkpoint).is_dir():
        return made
    if not (own := PLACE / model.release).is_dir():
        in_model_environment("-m", model.maker, "--output", str(own))
    return own


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def our_server(stack: ExitStack, checkpoint: Path, threads: int, scratch: Path) -> RunningServer:
    """A checkpoint behind our Triton, until the stack is left."""
    engine, repository, state = (scratch / name for name in ("engine", "repository", "state"))
    in_model_environment("benchmarks/cpu_engines.py", "build", str(checkpoint), str(threads), str(engine))
    ref = ArtifactRef(kind="engine", digest="0" * 64)
    write_repository(engine, (), {}, target(threads), repository, engine_ref=ref)
    ports = ServerPorts(**dict(zip(("http", "grpc", "metrics", "openai"), free_ports(4), strict=True)))
    stack.callback(stop_server, state)
    home = REPOSITORY / ".envs" / "triton"
    return start_server(repository, ports, triton_home=home, python=MODEL_PYTHON, state=state)


def vllm_serve(stack: ExitStack, checkpoint: Path, scratch: Path) -> tuple[str, int]:
    """The URL of `vllm serve`, once it is ready, and its pid."""
    (port,) = free_ports(1)
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "HOME": str(scratch)}
    options = ["--port", str(port), "--served-model-name", "llm", "--dtype", "bfloat16", "--max-model-len", "2048"]
    with Path(scratch, "vllm.log").open("wb") as log:
        command = [str(VLLM), "serve", str(checkpoint), *options]
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    stack.callback(server.wait)
    stack.callback(server.terminate)
    end = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return f"http://127.0.0.1:{port}", server.pid
        except OSError:
            time.sleep(1)
    raise SystemExit(f"vllm serve did not start:\n{Path(scratch, 'vllm.log').read_text()[-3000:]}")


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """A process and all that it started stand still meanwhile."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    for one in family:
        one.suspend()
    try:
        yield
    finally:
        for one in family:
            one.resume()


async def rate(session: aiohttp.ClientSession, url: str, requests: int, turn: int) -> float:
    """Tokens a second of some requests that are asked together."""

    async def ask(number: int) -> int:
        body = {"model": "llm", "prompt": PROMPT.format(f"{turn}-{number}"), "max_tokens": TOKENS, "temperature": 0}
        async with session.post(f"{url}/v1/completions", json={**body, "ignore_eos": True}) as answer:
            answer.raise_for_status()
            return int((await answer.json())["usage"]["completion_tokens"])

    began = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(ask, range(requests))))
    return tokens / (time.perf_counter() - began)


async def measure(urls: dict[str, str], pids: dict[str, int], turns: int) -> list[bool]:
    """Ask, print the figures and the goals."""
    other = dict(zip(urls, reversed(pids.values()), strict=True))
    met = []
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a kept connection ends while its server stands still
    async with aiohttp.ClientSession(connector=connector) as session:
        for requests in AT_ONCE:
            rates: dict[str, list[float]] = {name: [] for name in urls}
            for turn in range(-1, turns):  # the first one warms up
                for name, url in list(urls.items())[:: 1 if turn % 2 else -1]:
                    with suspended(other[name]):
                        measured = await rate(session, url, requests, turn)
                    rates[name] += [measured] if turn >= 0 else []
            for name, own in rates.items():
                print(f"{requests:>2} at once  {name:<10} {np.median(own):7.1f} tokens/s", flush=True)
            ours, theirs = (float(np.median(own)) for own in rates.values())
            met.append(at_least(f"tokens a second beside vllm serve, {requests} at once", ours / theirs, 1.0))
    return met


def main() -> int:
    """Start the servers and measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face checkpoint; by default SmolLM2-135M-Instruct")
    parser.add_argument("--turns", type=int, default=5, help="rounds of each server")
    options = parser.parse_args()
    if not VLLM.exists():
        raise SystemExit("vLLM is not here: make vllm")
    PLACE.mkdir(parents=True, exist_ok=True)
    checkpoint = options.checkpoint or demo_model(CHAT)
    with tempfile.TemporaryDirectory(prefix="cpu-engines-") as scratch, ExitStack() as stack:
        server = our_server(stack, checkpoint, os.cpu_count() or 1, Path(scratch))
        url, pid = vllm_serve(stack, checkpoint, Path(scratch))
        urls, pids = {"ours": server.endpoint.url, "vllm serve": url}, {"ours": server.pid, "vllm serve": pid}
        return 0 if all(asyncio.run(measure(urls, pids, options.turns))) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        build(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit(main())
