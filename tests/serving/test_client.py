import asyncio
import gzip
import json
from collections.abc import Sequence

import pytest
from aiohttp import web

from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest

REQUEST = GenerationRequest("2+2=", 3)


def chunk(text: str, so_far: int, reason: str | None = None) -> dict:
    usage = {"prompt_tokens": 2, "completion_tokens": so_far}
    return {"model": "llm", "choices": [{"text": text, "finish_reason": reason}], "usage": usage}


WHOLE = (chunk("a", 1), chunk("b", 2), chunk("c", 3, "length"), "[DONE]")


async def asked_of(handler, request: GenerationRequest, *, seconds: float, stream: bool) -> Generation:
    """The client's answer from a server with this handler."""
    application = web.Application()
    application.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        async with GenerationClient(f"http://127.0.0.1:{port}/", timeout_seconds=seconds) as client:
            return await (client.stream(request) if stream else client.generate(request))
    finally:
        await runner.cleanup()


def against(
    chunks: Sequence[dict | str], *, status: int = 200, pause: float = 0.0, stream: bool = True,
    request: GenerationRequest = REQUEST,
) -> Generation:  # fmt: skip
    """The client's answer to a server that says exactly this."""

    async def answer(asked: web.Request) -> web.StreamResponse:
        if not stream or status != 200:
            text = chunks[0] if isinstance(chunks[0], str) else json.dumps(chunks[0])
            return web.Response(status=status, text=text)
        response = web.StreamResponse()
        await response.prepare(asked)
        for said in chunks:
            line = said if isinstance(said, str) else json.dumps(said)
            await response.write(f"data: {line}\n\n".encode())
            await asyncio.sleep(pause)
        return response

    return asyncio.run(asked_of(answer, request, seconds=5.0, stream=stream))


def test_a_whole_stream_is_text_tokens_and_times():
    answer = against(WHOLE, pause=0.02)
    assert answer.ok
    assert (answer.text, answer.output_tokens, answer.finish_reason, answer.status) == ("abc", 3, "length", 200)
    assert len(answer.chunk_seconds) == 3, "its end mark is no chunk"
    assert answer.first_token_seconds == answer.chunk_seconds[0]
    assert list(answer.chunk_seconds) == sorted(answer.chunk_seconds)
    assert answer.chunk_seconds[2] >= 0.04  # since the request: a busy client may see the first chunk late
    assert answer.total_seconds >= answer.chunk_seconds[2]


def test_the_first_token_is_the_first_chunk_with_text_in_it():
    answer = against((chunk("", 1), chunk("b", 2), chunk("c", 3, "length"), "[DONE]"), pause=0.05)
    assert answer.ok
    assert answer.first_token_seconds == answer.chunk_seconds[1]
    assert answer.first_token_seconds >= 0.05


def test_no_text_is_fine_for_a_caller_that_says_so():
    assert against((chunk("", 1, "stop"), "[DONE]"), request=GenerationRequest("x", 3, allow_empty=True)).ok


def test_an_answer_that_does_not_end_in_time_is_an_error():
    async def late(_: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.Response()

    assert "within 0.2 s" in asyncio.run(asked_of(late, REQUEST, seconds=0.2, stream=False)).error


def test_nobody_there_is_an_error_and_no_exception():
    async def ask() -> Generation:
        async with GenerationClient("http://127.0.0.1:9") as client:
            return await client.stream(REQUEST)

    answer = asyncio.run(ask())
    assert answer.status == 0
    assert "Connect" in answer.error


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_without_an_end_is_given_up_at_the_byte_limit(monkeypatch, stream):
    monkeypatch.setattr("llm_pipeline.serving.client.LONGEST_ANSWER_BYTES", 100_000)
    endless = json.dumps(chunk("x" * 200_000, 1))
    answer = against([*[chunk("x" * 1000, 1)] * 200] if stream else [endless], stream=stream)
    assert "more than 100000 bytes" in answer.error


def test_an_error_body_without_an_end_is_given_up_at_the_byte_limit(monkeypatch):
    monkeypatch.setattr("llm_pipeline.serving.client.LONGEST_ANSWER_BYTES", 100_000)
    assert "more than 100000 bytes" in against(["x" * 200_000], status=500).error


def test_a_compressed_answer_is_never_unpacked():
    async def bomb(asked: web.Request) -> web.Response:
        assert asked.headers["Accept-Encoding"] == "identity"
        packed = gzip.compress(gzip.compress(b"0" * 50_000_000))
        return web.Response(body=packed, headers={"Content-Encoding": "gzip, gzip"})

    answer = asyncio.run(asked_of(bomb, REQUEST, seconds=5.0, stream=False))
    assert "not an answer from the model" in answer.error
