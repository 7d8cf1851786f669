"""A whole place that OpenAI's API is spoken at: Triton, the process beside it, and the router, as users reach them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from free_ports import free_ports, server_ports
from test_openai_endpoint import CONTEXT, HELLO, MODEL, openai, version  # noqa: F401 - a fixture

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.router import EnvoyRouter, start_router, stop_router
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.router import all_to
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.operations.status import curl_line
from llm_pipeline.serving.triton_server import RunningServer

pytestmark = pytest.mark.slow


@dataclass
class Place:
    """Blue serves, and green is empty."""

    config: TargetPlace
    envoy: EnvoyRouter
    blue: RunningServer


@pytest.fixture(scope="module")
def place(version, start, tmp_path_factory) -> Iterator[Place]:  # noqa: F811
    root = tmp_path_factory.mktemp("place")
    server, green = start(version.parents[1], digest="b" * 64), server_ports()
    blue, (port, admin_port) = server.ports, free_ports(2)
    router = EnvoyPlace(port=port, admin_port=admin_port)
    config = TargetPlace(staging=green, blue=blue, green=green, router=router)
    try:
        everything = all_to("blue", owner="test", epoch=0)
        envoy = start_router(router, config.slots, root / "router", initial=everything)
        envoy.name_release("blue", "release-1")
        yield Place(config, envoy, server)
    finally:
        stop_router(root / "router")


@pytest.fixture
def client(place: Place):
    url = f"{place.config.router.users_url()}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_command_that_a_release_ends_with_is_a_chat_and_is_answered(place) -> None:
    command = shlex.split(curl_line(place.config, place.blue.about))
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    head, _, body = answer.replace("\r", "").partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    assert "x-llm-release: release-1" in head
    assert json.loads(body)["choices"][0]["message"]["role"] == "assistant"


def test_a_stream_is_read_to_its_end_by_the_router(place, client) -> None:
    log = place.envoy.access_log()
    end = log.end()
    usage = {"include_usage": True}
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 5, "stream": True, "stream_options": usage}
    events = list(client.chat.completions.create(**asked))
    assert events[-1].usage.completion_tokens == 5
    seen: list = []

    def is_logged() -> bool:
        seen[:] = [one for one in log.read(end)[0] if not one.in_flight]
        return bool(seen)

    assert wait_until(is_logged, 10)
    (one,) = seen
    assert (one.route, one.streaming, one.error) == ("/chat/completions", True, False)
    assert (one.truncated, one.empty) == (False, False)


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/completions", "v2/models/llm/generate"])
def test_json_that_would_end_a_parser_is_refused_and_everybody_else_is_served(place, client, path: str) -> None:
    json_type = {"Content-Type": "application/json"}
    url = f"{place.config.router.users_url()}/{path}"
    assert httpx.post(url, content=b"[" * 200_000, headers=json_type, timeout=30).status_code == 400
    assert client.completions.create(model=MODEL, prompt="the cat", max_tokens=2).usage.completion_tokens == 2


def test_a_mistake_is_told_as_by_openai_and_asked_once(client) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt="the cat", max_tokens=CONTEXT + 1)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="the cat", max_tokens=2)
