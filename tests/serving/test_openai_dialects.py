"""Answers that real servers gave, sent again as they came; `openai_answers/` says which server, and when."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_answers import answering

from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.server_metrics import ServerSampler
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.completions import bad_bodies
from llm_pipeline.serving.endpoint_access import active_requests, require_model

ANSWERS = Path(__file__).parent / "openai_answers"
MOVED = "/moved"


def replaying(answers: dict[str, str]) -> AbstractContextManager[str]:
    """The URL of a server that gives these answers."""

    def answer(path: str, asked: bytes) -> tuple[int, str]:
        if path.startswith(MOVED):
            return 308, "<html>308 Permanent Redirect</html>"
        if asked:
            return 200, answers["stream" if json.loads(asked)["stream"] else "whole"]
        name = path.rpartition("/")[2]
        return (200, answers[name]) if name in answers else (404, "Not Found")

    return answering(answer)


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ANSWERS / f"{name}.json").read_text())
    assert found["source"]
    assert found["date"]
    return found


def ask(endpoint: Endpoint, *, times: int = 1) -> list[Generation]:
    """Streams and whole answers in turn, on one client."""
    request = GenerationRequest("7 + 5 =", 4)

    async def one_by_one() -> list[Generation]:
        async with GenerationClient.of(endpoint, timeout_seconds=20) as client:
            return [
                await (client.stream(request) if stream else client.generate(request))
                for _ in range(times)
                for stream in (True, False)
            ]

    return asyncio.run(one_by_one())


@pytest.mark.parametrize(("name", "context"), [("llama_cpp", 128), ("litellm", None)])
def test_answers_of_real_servers_are_read_whole_and_streamed(name, context):
    told = recorded(name)
    with replaying(told) as url:
        endpoint = Endpoint(url=url, openai_model=told["model"])
        assert require_model(endpoint) == context
        for answer in ask(endpoint, times=4):
            assert (answer.error, answer.text) == ("", " 12 rock rock rock")
            assert (answer.output_tokens, answer.finish_reason) == (4, "length")


@pytest.mark.parametrize("name", ["llama_cpp", "litellm"])
def test_the_load_client_reads_them_too(name):
    told = recorded(name)
    requests = [LoadRequest("7 + 5 =", 4)] * 8
    with replaying(told) as url, LoadClient(Endpoint(url=url, openai_model="llm"), processes=1) as client:
        records = client.send(Traffic(requests, 0.4, np.arange(8) * 0.05)).records
    assert [Fault(fault) for fault in records["fault"]] == [Fault.NONE] * 8
    assert set(records["output_tokens"]) == {4}
    assert set(records["input_tokens"]) == {5}


def test_a_server_that_refuses_our_fields_and_lists_nothing_is_refused_with_its_own_words():
    told = recorded("transformers_serve")
    with replaying(told) as url:
        endpoint = Endpoint(url=url, openai_model=told["model"])
        with pytest.raises(IntegrityError, match="the server has the models none, not /models/demo"):
            require_model(endpoint)
        assert {answer.error for answer in ask(endpoint)} == {
            "the model '/models/demo@main' answered, and '/models/demo' was asked"
        }


def test_a_server_that_keeps_none_of_our_fields_is_told_by_what_its_answers_lack():
    told = recorded("llama_cpp_python")
    with replaying(told) as url:
        endpoint = Endpoint(url=url, openai_model="llm")
        stream, whole = ask(endpoint)
        assert stream.error == "the answer has no usage: how many tokens it has is not known"
        assert (whole.error, whole.text) == ("", " 12")
        with LoadClient(endpoint, processes=1) as client:
            details = client.send(Traffic([LoadRequest("7 + 5 =", 4)], 0.1, np.zeros(1))).records.details
    assert details[Fault.CUT] == "the answer has no usage: how many tokens it has is not known"


def test_the_metrics_of_other_servers_are_read():
    told = recorded("llama_cpp")
    with replaying(told) as url:
        endpoint = Endpoint(url=url, metrics_url=f"{url}/metrics", openai_model="llm")
        assert active_requests(endpoint) == 3
        with ServerSampler(endpoint) as sampler:
            pass
        use = sampler.use()
        assert (use.active_requests, use.output_tokens) == (3, 0)


def test_a_prompt_that_is_too_long_is_sent_only_where_the_limit_is_known():
    assert set(bad_bodies("llm", "1 1 1")) - set(bad_bodies("llm", None)) == {"a prompt far too long"}


@pytest.mark.parametrize(
    ("path", "status", "said"), [("/elsewhere", 404, "Not Found"), (MOVED, 308, "308 Permanent Redirect")]
)
def test_an_address_that_is_none_says_what_came_and_what_to_do(path, status, said):
    with replaying({}) as url, pytest.raises(PipelineError, match=f"HTTP {status}: .*{said}") as refused:
        require_model(Endpoint(url=f"{url}{path}", openai_model="llm"))
    assert "before /v1" in refused.value.hint


@pytest.mark.parametrize("ending", ["/v1", "/v1/", "/openai/v1"])
def test_the_url_of_other_clients_is_refused_and_a_base_path_is_not(tmp_path, ending):
    file = tmp_path / "endpoint.yaml"
    file.write_text(f"url: http://gateway.example.com{ending}\nopenai_model: llm\n")
    with pytest.raises(ConfigError, match="url must end before /v1"):
        load_yaml(file, Endpoint)
    file.write_text("url: http://gateway.example.com/openai\nopenai_model: llm\n")
    assert load_yaml(file, Endpoint).url.endswith("/openai")
