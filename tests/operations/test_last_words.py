"""The command that a release ends with asks what the place's users ask."""

import json
import os
import shlex
import shutil
import subprocess

import pytest
from deployment_here import place_document
from scripted_answers import answering

from llm_pipeline.artifacts.endpoint_description import EndpointDescription
from llm_pipeline.artifacts.model_rules import ChatFormat
from llm_pipeline.config.deployment import TargetPlace
from llm_pipeline.operations.status import curl_line

SPOKEN = EndpointDescription(model="demo/tiny", release="r1", maximum_tokens_per_request=64, maximum_sequences=4)


def place_of(kind: str, port: int) -> TargetPlace:
    """A place of Tritons, or of servers with OpenAI's API, whose router has that port."""
    document = place_document(iter(range(18000, 18014)))
    if kind == "openai":
        for slot in ("blue", "green"):
            endpoint = {"url": f"http://10.0.0.2:8{len(slot)}00", "openai_model": "chat 8b"}
            document[slot] = {"kind": "openai", "endpoint": endpoint}
    return TargetPlace.model_validate({**document, "router": {"port": port, "admin_port": 18081}})


@pytest.mark.parametrize(
    ("kind", "spoken", "path", "body"),
    [
        ("triton", None, "/v1/completions", {"prompt": "Hello", "max_tokens": 32}),
        ("triton", SPOKEN, "/v1/completions", {"model": "demo/tiny", "prompt": "Hello", "max_tokens": 32}),
        (
            "triton",
            SPOKEN.model_copy(update={"chat": ChatFormat(template="{{ messages }}")}),
            "/v1/chat/completions",
            {"model": "demo/tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32},
        ),
        ("openai", None, "/v1/completions", {"model": "chat 8b", "prompt": "Hello", "max_tokens": 32}),
    ],
)
def test_the_command_asks_the_model_in_its_way(
    kind: str, spoken: EndpointDescription | None, path: str, body: dict[str, object]
) -> None:
    words = shlex.split(curl_line(place_of(kind, 18080), spoken))
    assert f"http://127.0.0.1:18080{path}" in words
    assert json.loads(words[words.index("-d") + 1]) == body


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("kind", ["triton", "openai"])
def test_the_command_reaches_a_server_of_this_host_although_the_shell_names_a_proxy(kind: str) -> None:
    proxy = "http://127.0.0.1:9"  # nobody listens there
    with answering({"/v1/completions": (200, "hello")}) as url:
        answer = subprocess.run(
            shlex.split(curl_line(place_of(kind, int(url.rpartition(":")[2])), None)),
            env={**os.environ, "http_proxy": proxy, "ALL_PROXY": proxy, "no_proxy": ""},
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
    assert answer.stdout.endswith("hello")
