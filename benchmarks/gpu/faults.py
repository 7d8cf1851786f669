"""What a GPU can do to a server of vLLM behind Triton: each fault for real, what users saw of it, and what was left.

    python -m benchmarks.gpu.faults --work /tmp/bench --triton-home .envs/triton --model CHECKPOINT

Run it with an interpreter that has vLLM and numpy 1.26. Too little memory when the engine loads; no memory left while
it serves; an error of CUDA inside the engine; an engine that hangs; a stub that is killed. After each the GPU's memory
must be back to where it was, and no process may be left. One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.goals import at_most, goal
from benchmarks.gpu.held_memory import held
from benchmarks.gpu.vllm_serving import PORTS, package
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.triton_server import RunningServer, start_server, stop_server

READY_SECONDS, RECOVERED_SECONDS, ANSWER_SECONDS = 300.0, 180.0, 60.0
LITTLE_MEMORY = 8 * 2**30
SAME_MEMORY = 64 * 2**20
FAULTY_CUDA = """
import signal, sys

def fail(*_):
    import torch
    torch.zeros(4, device="cuda")[torch.tensor([10**6], device="cuda")].sum().item()

signal.signal(signal.SIGUSR2, fail)
"""
"""Every Python process of the engine takes a signal for an index out of bounds on the GPU, a sticky error of CUDA."""


@dataclass
class Bench:
    """What is served, and where, and the processes of all engines that ran."""

    repository: Path
    model: Path
    triton_home: Path
    state: Path
    modules: Path
    engines: list[psutil.Process] = field(default_factory=list)

    @contextmanager
    def server(self) -> Iterator[RunningServer]:
        """A server for one fault; it is stopped as a release stops it."""
        ports = PORTS.model_copy(update={"readable": (str(self.modules),)})
        server = start_server(
            self.repository, ports, triton_home=self.triton_home, python=Path(sys.executable), state=self.state,
            links={"llm/1/checkpoint": self.model}, wait_seconds=READY_SECONDS,
            environment={"PYTHONPATH": os.pathsep.join([str(self.modules), os.environ.get("PYTHONPATH", "")])},
        )  # fmt: skip
        self.engines += _engine(server)
        yield server


def main() -> int:
    """Meet one fault after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--triton-home", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--accelerator", default="H200-SXM-141GB", help="the GPU's name in the catalog")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=tuple(FAULTS))
    parser.add_argument("--smoke", action="store_true", help="a small model on a CPU: tries the script")
    parser.set_defaults(sequences=64, tensor_parallel=1, eager=False)
    options = parser.parse_args()
    work = options.work.absolute()
    modules = work / "modules"
    modules.mkdir(parents=True, exist_ok=True)
    (modules / "sitecustomize.py").write_text(FAULTY_CUDA, encoding="utf-8")
    options.work = work
    repository, _ = package(options, options.model)
    bench = Bench(repository, options.model.absolute(), options.triton_home.absolute(), work / "faulty", modules)
    met = []
    for name in options.faults:
        before, started = _used_memory(), time.monotonic()
        try:
            met += FAULTS[name](bench)
        finally:
            stop_server(bench.state)
        met += _left_behind(bench, name, before)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return 0 if all(met) else 1


def _memory_at_load(bench: Bench) -> Iterator[bool]:
    """Another process has the GPU: one clear error, before long."""
    with held(0, LITTLE_MEMORY):
        started = time.monotonic()
        try:
            with bench.server():
                said = "a server"
        except PipelineError as error:
            said = f"{type(error).__name__}: {error.message}"
            print(f"{said} -> {error.hint}", flush=True)
        log = (bench.state / "server.log").read_text(encoding="utf-8", errors="replace")
        yield goal("load_without_memory", said.split(":")[0], "ServerFailed", met=said.startswith("ServerFailed"))
        told = "memory" in log.lower()
        yield goal("load_without_memory_log", "names the memory" if told else "silent", "names the memory", met=told)
        yield at_most("load_without_memory_seconds", time.monotonic() - started, READY_SECONDS, "s")


def _memory_under_load(bench: Bench) -> Iterator[bool]:
    """Another process takes all that is left while users ask: who has asked is answered or told, and it goes on."""
    with bench.server() as server, held(0, 0):
        answers = asyncio.run(_ask(server, 64))
    yield from _all_told("memory_under_load", answers)
    yield _answers_again("memory_under_load", server)


def _cuda_error(bench: Bench) -> Iterator[bool]:
    """An error of CUDA ends the engine: its requests fail at once, and it is started again."""
    yield from _engine_fault(bench, "cuda_error", lambda process: process.send_signal(signal.SIGUSR2))


def _killed_engine(bench: Bench) -> Iterator[bool]:
    yield from _engine_fault(bench, "killed_engine", psutil.Process.kill)


def _engine_fault(bench: Bench, name: str, strike: Callable[[psutil.Process], object]) -> Iterator[bool]:
    with bench.server() as server:
        answers = asyncio.run(_ask(server, 64, lambda: [strike(process) for process in _engine(server)]))
        yield from _all_told(name, answers)
        failed = sum(bool(answer.error) for answer in answers)
        yield goal(f"{name}_struck", f"{failed} of {len(answers)} failed", "some", met=failed > 0)
        yield _answers_again(name, server)


def _hung_engine(bench: Bench) -> Iterator[bool]:
    """An engine that stands still answers nothing; to stop the server must not take longer than with a live one."""
    with bench.server() as server:
        answers = asyncio.run(_ask(server, 8, lambda: [process.suspend() for process in _engine(server)], 10.0))
        failed = sum(bool(answer.error) for answer in answers)
        yield goal("hung_engine_struck", f"{failed} of {len(answers)} failed", "all", met=failed == len(answers))
        started = time.monotonic()
        stop_server(bench.state)
        yield at_most("hung_engine_stop", time.monotonic() - started, 30.0, "s")


def _killed_stub(bench: Bench) -> Iterator[bool]:
    """Triton's process of the model is killed: whoever asked is told, and the server does not call itself ready."""
    with bench.server() as server:
        stubs = [
            one for one in psutil.Process(server.pid).children(recursive=True) if "python_backend_stub" in one.name()
        ]
        answers = asyncio.run(_ask(server, 64, lambda: [stub.kill() for stub in stubs]))
        yield from _all_told("killed_stub", answers)
        yield goal("killed_stub_struck", f"{len(stubs)} stubs", "1 stub", met=len(stubs) == 1)
        _, alive = psutil.wait_procs(bench.engines, timeout=30.0)
        yield goal("killed_stub_engine", f"{len(alive)} processes of the engine", "0", met=not alive)
        again = asyncio.run(_ask(server, 1))[0]
        print(f"killed_stub: the next request: {again.error or 'answered'}", flush=True)


FAULTS: dict[str, Callable[[Bench], Iterator[bool]]] = {
    "memory_at_load": _memory_at_load,
    "memory_under_load": _memory_under_load,
    "cuda_error": _cuda_error,
    "killed_engine": _killed_engine,
    "hung_engine": _hung_engine,
    "killed_stub": _killed_stub,
}


async def _ask(
    server: RunningServer, users: int, strike: Callable[[], object] | None = None, seconds: float = ANSWER_SECONDS
) -> list[Generation]:
    """Requests that start together, and in the middle of them the fault."""
    request = GenerationRequest(prompt="w1 w2 w3 w4", maximum_tokens=512, ignore_eos=True, allow_empty=True)
    async with GenerationClient(server.http_url, timeout_seconds=seconds) as client:
        asked = [asyncio.create_task(client.generate(request)) for _ in range(users)]
        if strike:
            await asyncio.sleep(1.5)
            strike()
        return await asyncio.gather(*asked)


def _all_told(name: str, answers: list[Generation]) -> Iterator[bool]:
    """Nobody waits for an answer that does not come."""
    late = [answer for answer in answers if "no complete answer within" in answer.error]
    errors = sorted({answer.error for answer in answers if answer.error})
    print(f"{name}: {sum(not answer.error for answer in answers)} of {len(answers)} answered; {errors[:3]}", flush=True)
    yield goal(f"{name}_all_told", f"{len(late)} waited in vain", "0 waited in vain", met=not late)


def _answers_again(name: str, server: RunningServer) -> bool:
    started = time.monotonic()
    while (answer := asyncio.run(_ask(server, 1))[0]).error and time.monotonic() - started < RECOVERED_SECONDS:
        time.sleep(1.0)
    if answer.error:
        return goal(f"{name}_recovered", answer.error, "an answer", met=False)
    return at_most(f"{name}_recovered", time.monotonic() - started, RECOVERED_SECONDS, "s")


def _left_behind(bench: Bench, name: str, before: int) -> Iterator[bool]:
    deadline = time.monotonic() + 20.0
    while (more := _used_memory() - before) > SAME_MEMORY and time.monotonic() < deadline:
        time.sleep(0.5)
    yield at_most(f"{name}_memory_left", more / 2**20, SAME_MEMORY / 2**20, "MiB")
    _, left = psutil.wait_procs(bench.engines, timeout=10.0)
    yield goal(f"{name}_processes_left", f"{len(left)}", "0", met=not left)


def _engine(server: RunningServer) -> list[psutil.Process]:
    """The processes that the served model's own process of vLLM has started: those on the GPU."""
    below = psutil.Process(server.pid).children(recursive=True)
    found = [process for one in below if "vllm_process.py" in " ".join(one.cmdline()) for process in one.children(True)]
    return [process for process in found if "resource_tracker" not in " ".join(process.cmdline())]


def _used_memory() -> int:
    """Bytes in use on the first GPU that is visible; 0 without one."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    try:
        asked = ["nvidia-smi", f"--id={first}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        told = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout
    except FileNotFoundError:
        return 0
    return int(told.split()[0]) * 2**20


if __name__ == "__main__":
    sys.exit(main())
