"""A real tritonserver with the faulty model: `with faulty_server(directory, ports) as server: server.order("drop")`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
from pretended_engine import engine_facts

from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.serving.model_repository import PackagedEngine, write_served_model
from llm_pipeline.serving.triton_server import RunningServer, start_server, stop_server

sys.path.append(str(Path(__file__).parents[2]))

from free_ports import server_ports

ENVIRONMENTS = Path(__file__).parents[3] / ".envs"
TRITON_HOME, MODEL_PYTHON = ENVIRONMENTS / "triton", ENVIRONMENTS / "model" / "bin" / "python"
SEQUENCES, QUEUED, CONTEXT = 64, 400, 1024


class FaultyServer:
    """A running server and the switch of its faults."""

    def __init__(self, server: RunningServer, state: Path) -> None:
        self.server, self.state = server, state
        self.endpoint = server.endpoint

    def order(self, kind: str = "", **how: float) -> None:
        """Give the server a fault, or none; its counters start again."""
        prompt = f"#fault {json.dumps({'kind': kind, **how})}"
        body = {"text_input": prompt, "max_tokens": 1}
        answer = httpx.post(f"{self.server.http_url}/v2/models/llm/generate", json=body, timeout=10)
        assert answer.json()["text_output"] == "ok"

    def completed_requests(self) -> int:
        """Requests that were answered to their end, as the model's own metric says."""
        lines = httpx.get(self.endpoint.metrics_url, timeout=10).text.splitlines()
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if 'outcome="completed"' in line)

    def kill_model(self) -> None:
        """As a crash of its engine would: the process that runs model.py is gone, and Triton goes on."""
        for process in psutil.Process(self.server.pid).children():
            process.send_signal(signal.SIGKILL)

    def kill(self) -> None:
        """As the kernel does for want of memory."""
        os.kill(self.server.pid, signal.SIGKILL)


@contextmanager
def faulty_server(directory: Path) -> Iterator[FaultyServer]:
    """Start a server in a new directory; it is stopped whole at the end, whatever was killed."""
    state = directory / "slot"
    repository = write_repository(directory)
    try:
        ports = server_ports(Path("/tmp"))  # noqa: S108 - Triton unpacks models there
        server = start_server(
            repository, ports, triton_home=TRITON_HOME, python=MODEL_PYTHON, state=state, wait_seconds=90
        )
        yield FaultyServer(server, state)
    finally:
        stop_server(state)


def write_repository(directory: Path) -> Path:
    """The repository as it is packaged for every release, with the faulty model's code in it."""
    limits = {
        "maximum_sequences": SEQUENCES, "maximum_queued_requests": QUEUED, "maximum_tokens_per_request": CONTEXT,
    }  # fmt: skip
    target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu", limits=limits)
    facts = engine_facts(quantization="none", kv_cache="f32", context_length=CONTEXT)
    engine = PackagedEngine(
        directory,
        ArtifactRef(kind="engine", digest="f" * 64),
        EngineDescription(facts=facts, target=target),
        target,
        {},
    )
    repository = directory / "repository"
    write_served_model(engine, Path(__file__).with_name("model.py"), repository)
    return repository
