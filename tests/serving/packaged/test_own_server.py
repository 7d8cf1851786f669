"""An engine's own server in Triton's place: `vllm serve` by a double of the command, behind a real Envoy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from free_ports import free_ports, server_ports

pytest.importorskip("tritonclient")

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.router import start_router, stop_router
from llm_pipeline.artifacts.endpoint_description import read_serve_command
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.router import all_to
from llm_pipeline.serving.client import GenerationClient, GenerationRequest
from llm_pipeline.serving.endpoint_access import active_requests, require_served
from llm_pipeline.serving.triton_server import ServerFailed, find_server, has_ended, start_server, stop_server

TESTS = Path(__file__).parents[2]
DIGEST = "d" * 64
SERVES = f"""#!{sys.executable}
import sys, time
sys.path[:0] = [{str(TESTS)!r}]
from openai_server import OpenAiDouble
options = dict(zip(sys.argv, sys.argv[1:]))
with OpenAiDouble(model=options["--served-model-name"], port=int(options["--port"])) as server:
    server.root = sys.argv[2]
    time.sleep(600)
"""
FAILS = f"""#!{sys.executable}
print("INFO loading")
raise RuntimeError("no kernel for this checkpoint")
"""
ARGUMENTS = {"dtype": "bfloat16", "enable_prefix_caching": True, "enforce_eager": False, "gpu_memory_utilization": 0.4}


@pytest.fixture
def repository(gpu_engine, package) -> Path:
    return package(*gpu_engine("vllm", {"arguments": json.dumps(ARGUMENTS)}, server="vllm"), model="acme/chat")


@pytest.fixture
def slot(repository, bytes_checkpoint, tmp_path):
    """Starts the repository by a double of the command beside an interpreter."""
    state, software = tmp_path / "slot", tmp_path / "software"
    software.mkdir()
    (software / "python").symlink_to(sys.executable)

    ports = server_ports(TESTS, software, Path(sys.prefix), Path(sys.base_prefix))

    def start(script: str = SERVES):
        if script:
            (software / "vllm").write_text(script)
            (software / "vllm").chmod(stat.S_IRWXU)
        return start_server(
            repository, ports, triton_home=tmp_path, python=software / "python", state=state, digest=DIGEST,
            links={"llm/1/checkpoint": bytes_checkpoint}, wait_seconds=60,
        )  # fmt: skip

    start.state = state
    yield start
    stop_server(state)


def test_the_command_has_the_arguments_that_were_measured_and_the_release_by_name(repository):
    command = read_serve_command(repository)
    words = command.of(Path("/env/bin"), model="llm_pipeline:d", port=8000)
    assert words[:7] == ["/env/bin/vllm", "serve", "llm_pipeline:d", "--host", "127.0.0.1", "--port", "8000"]
    assert {"--no-enforce-eager", "--enable-prefix-caching"} <= set(words)
    given = dict(pairwise(words))
    assert given["--served-model-name"] == "acme/chat"
    assert given["--max-model-len"] == "512"
    assert given["--override-generation-config"] == "{}"


def test_it_is_started_found_asked_and_stopped_as_a_triton_is(slot):
    server = slot()
    assert server.ready
    assert find_server(slot.state) == server
    assert slot().pid == server.pid
    require_served(server.endpoint, DIGEST)
    assert active_requests(server.endpoint) == 0

    async def ask():
        async with GenerationClient.of(server.endpoint) as client:
            return await client.stream(GenerationRequest("one two", 4))

    assert asyncio.run(ask()).ok
    assert not stop_server(slot.state, digest="f" * 64)
    assert stop_server(slot.state, digest=DIGEST)
    assert find_server(slot.state) is None
    assert not server.alive


def test_one_that_has_ended_is_reported(slot):
    server = slot()
    assert not has_ended(slot.state)
    os.kill(server.pid, signal.SIGKILL)
    assert wait_until(lambda: has_ended(slot.state), 5)


def test_what_keeps_it_from_starting_is_told_by_its_own_last_errors(slot):
    with pytest.raises(ServerFailed, match="RuntimeError: no kernel for this checkpoint"):
        slot(FAILS)
    (slot.state.parent / "software/vllm").unlink()
    with pytest.raises(ConfigError, match="no command vllm"):
        slot("")


def test_users_ask_by_openais_api_alone(slot, tmp_path):
    server = slot()
    green, (port, admin) = server_ports(), free_ports(2)
    place = EnvoyPlace(port=port, admin_port=admin, only_openai=True)
    slots = {"blue": server.ports, "green": green}
    router = start_router(place, slots, tmp_path / "router", initial=all_to("blue", owner="test", epoch=0))
    try:
        router.name_release("blue", "release-1")
        body = {"prompt": "a", "max_tokens": 2, "temperature": 0}

        def post(path):
            return httpx.post(f"http://127.0.0.1:{port}{path}", json=body, timeout=10)

        assert wait_until(lambda: post("/v1/completions").headers.get("x-llm-release") == "release-1", 10)
        for path in ("/v2/models/llm/generate", "/inference.GRPCInferenceService/ModelInfer"):
            refused = post(path)
            assert (refused.status_code, "not offered" in refused.text) == (404, True)
        assert router.usable("blue")
        assert router.read()[0].weights == {"blue": 10_000, "green": 0}
    finally:
        stop_router(tmp_path / "router")
