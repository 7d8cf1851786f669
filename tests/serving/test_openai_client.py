"""The client against a server of OpenAI's completions: sound, and wrong in every way that answers are checked for."""

import asyncio
from collections.abc import Iterator

import pytest
from openai_endpoint import at
from openai_server import KEY, OpenAiDouble

from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.endpoint_access import require_model, require_served


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAiDouble]:
    with OpenAiDouble() as found:
        yield found


def asked(server: OpenAiDouble, request: GenerationRequest, *, stream: bool, **changes: object) -> Generation:
    async def ask() -> Generation:
        async with GenerationClient.of(at(server, **changes), timeout_seconds=5) as client:
            return await (client.stream(request) if stream else client.generate(request))

    return asyncio.run(ask())


def test_whole_answers_and_streams_are_the_same_text_with_the_servers_count_of_tokens(server):
    request = GenerationRequest("a b c", 6, ignore_eos=True)
    whole, stream = (asked(server, request, stream=stream) for stream in (False, True))
    assert whole.ok, whole.error
    assert (whole.text, whole.output_tokens, whole.finish_reason) == (stream.text, stream.output_tokens, "length")
    assert (stream.error, stream.output_tokens) == ("", 6)
    assert stream.first_token_seconds == stream.chunk_seconds[0]
    assert server.seen[-1] == {
        "model": "llm", "prompt": "a b c", "max_tokens": 6, "temperature": 0.0, "stream": True, "ignore_eos": True,
        "repetition_penalty": 1.0, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip


def test_tokens_that_are_counted_only_at_the_end_are_those_at_the_end(server):
    answer = asked(server, GenerationRequest("fault=usage_at_the_end a", 4, ignore_eos=True), stream=True)
    assert (answer.error, answer.output_tokens) == ("", 4)


FAULTS = {
    "truncated": "ClientPayloadError|final chunk is missing after 2 tokens",
    "cut": "ClientPayloadError|ServerDisconnected",
    "no_reason": "final chunk is missing after 4 tokens",
    "no_usage": "no usage",
    "error": "EngineCore died",
    "other_model": "the model 'gpt-oss' answered, and 'llm' was asked",
    "two_choices": "not an answer from the model",
    "absurd_usage": "not an answer from the model",
    "negative_usage": "not an answer from the model",
    "filtered": "the server ended the answer after 4 tokens: content_filter",
    "aborted": "the server ended the answer after 4 tokens: cancelled",
    "short": "only 3 of 4 tokens came",
    "long": "6 tokens came, 4 were asked for",
    "empty": "without any text",
    "redirect": "HTTP 307",
    "overloaded": "HTTP 503: too many requests",
    "html": "not an answer from the model",
    "chat": "not an answer from the model|final chunk is missing",
    "nothing": "not an answer from the model|final chunk is missing",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_is_wrong_is_an_error_that_says_why(server, fault, stream):
    answer = asked(server, GenerationRequest(f"fault={fault} a", 4), stream=stream)
    assert not answer.ok
    assert any(part in answer.error for part in FAULTS[fault].split("|")), answer.error


@pytest.mark.parametrize(
    ("fault", "error"), [("no_end", "the stream's end mark [DONE] is missing"), ("goes_on", "not an answer")]
)
def test_a_stream_must_end_with_its_end_mark(server, fault, error):
    assert error in asked(server, GenerationRequest(f"fault={fault} a", 4), stream=True).error
    assert asked(server, GenerationRequest(f"fault={fault} a", 4), stream=False).ok


def test_the_api_key_is_sent_as_a_bearer_and_shown_nowhere(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    with OpenAiDouble(key=KEY) as server:
        assert asked(server, GenerationRequest("a", 2), stream=True, api_key_variable="TEST_KEY").ok
        assert server.heads == [f"Bearer {KEY}"]
        endpoint = at(server, api_key_variable="TEST_KEY")
        assert require_model(endpoint) == 512
        assert KEY not in repr(endpoint) + endpoint.model_dump_json()
        with pytest.raises(ConfigError, match="refuses access"):
            require_model(at(server))
        monkeypatch.setenv("TEST_KEY", wrong := "n0t-the-right-one")
        answer = asked(server, GenerationRequest("a", 2), stream=False, api_key_variable="TEST_KEY")
        assert answer.error == "HTTP 401: Incorrect API key provided: ***"
        with pytest.raises(ConfigError, match=r"refuses access: HTTP 401: Incorrect API key provided: [*]") as refused:
            require_model(endpoint)
        assert wrong not in str(refused.value)
        assert "api_key_variable" in refused.value.hint
    monkeypatch.delenv("TEST_KEY")
    with pytest.raises(ConfigError, match="TEST_KEY must hold"):
        require_model(endpoint)


def test_an_endpoint_serves_a_release_only_under_its_model_name(server):
    require_served(at(server), "d" * 64)
    with pytest.raises(IntegrityError, match="the server has the models llm, not gpt"):
        require_served(at(server, openai_model="gpt"), "d" * 64)


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ("<html>", 200, IntegrityError), ("[]", 200, IntegrityError), ('{"data": 3}', 200, IntegrityError),
        ('{"data": [{"id": 3}]}', 200, IntegrityError), ('{"data": []}', 200, IntegrityError),
        ("not found", 404, IntegrityError), ("loading", 503, Transient), ("no", 403, ConfigError),
    ],
)  # fmt: skip
def test_what_is_no_list_of_models_is_refused(monkeypatch, body, status, expected):
    from llm_pipeline.base.bounded_http import HttpAnswer

    monkeypatch.setattr(
        "llm_pipeline.serving.endpoint_access.call", lambda *_, **__: HttpAnswer(status=status, body=body.encode())
    )
    with pytest.raises(PipelineError) as refused:
        require_model(Endpoint(url="http://127.0.0.1:9", openai_model="llm"))
    assert type(refused.value) is expected


def test_nobody_there_may_be_there_later():
    with pytest.raises(Transient, match="no server answers"):
        require_model(Endpoint(url="http://127.0.0.1:9", openai_model="llm"))
