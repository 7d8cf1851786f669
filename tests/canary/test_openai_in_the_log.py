"""What the router's log says of answers of OpenAI's API, whole or streamed, through the real proxy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from threading import Thread

import aiohttp
import pytest
from openai_site import openai_slots, start_before

from llm_pipeline.adapters.envoy.router import EnvoyRouter, stop_router
from llm_pipeline.canary.access_log import AccessLog, LogCursor, ObservedRequest

pytestmark = pytest.mark.slow


def event(chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def text(words: str, reason: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "text": words, "logprobs": None, "finish_reason": reason}
    return event({"object": "text_completion", "model": "llm", "choices": [choice], **more})


def chat(words: str | None, reason: str | None = None) -> bytes:
    delta = {} if words is None else {"content": words}
    return event({"object": "chat.completion.chunk", "choices": [{"delta": delta, "finish_reason": reason}]})


def usage(tokens: int) -> dict[str, object]:
    return {"usage": {"prompt_tokens": 3, "completion_tokens": tokens, "completion_tokens_details": None}}


def cut(body: bytes) -> list[bytes]:
    return [body[at : at + 7] for at in range(0, len(body), 7)]


DONE = b"data: [DONE]\n\n"
WHOLE_CHAT = {"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}], **usage(2)}
CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 7}'}}
TOOL_CALL = {"role": "assistant", "content": None, "tool_calls": [CALL]}
PROSE = "Words of a model that says what nobody has said before, in a text that is long enough to be looked at."


@dataclass(frozen=True)
class Case:
    """An answer in pieces, and what the log says of it."""

    pieces: Sequence[bytes]
    expected: dict[str, object]
    path: str = "completions"
    stream: bool = True


def stream(*pieces: bytes, path: str = "completions", **expected: object) -> Case:
    return Case(pieces, expected, path)


def whole(*pieces: bytes, path: str = "completions", **expected: object) -> Case:
    return Case(pieces, expected, path, stream=False)


CHAT, WELL, BROKEN = "chat/completions", {"empty": False, "truncated": False}, {"fault": True, "lost": True}
COUNT = event({"choices": [], **usage(2)})
CASES = {
    "a stream": stream(
        text("a"), text("b", "length"), COUNT, DONE, streaming=True, **WELL
    ),
    "a stream that counts with every chunk": stream(
        *cut(text("a", **usage(1)) + text("b", "stop", **usage(2)) + DONE),
        error=False, **WELL,
    ),
    "a stream that nobody counts": stream(text("a"), text("b", "stop"), DONE, **WELL),
    "a stream without its end mark": stream(text("a"), text("b", "stop"), truncated=True),
    "a stream that ends early": stream(text("a"), DONE, truncated=True),
    "an aborted stream": stream(text("a", "abort"), DONE, truncated=True),
    "an error in a stream": stream(
        text("a"), b'data: {"err', b'or":{"message":"EngineCore died"}}\n\n', DONE, **BROKEN
    ),
    "an error of an older server": stream(
        event({"object": "error", "message": "died", "code": 500}), DONE, path=CHAT, **BROKEN
    ),
    "an error under 200": whole(b'{"error": {"message": "died"}}', **BROKEN),
    "a whole answer": whole(
        text(PROSE, "length", **usage(30))[6:], streaming=False, **WELL
    ),
    "an answer without text": whole(text("", "stop", **usage(1))[6:], empty=True),
    "a chat": whole(
        *cut(json.dumps(WHOLE_CHAT).encode()), path=CHAT, **WELL
    ),
    "a chat in a stream": stream(
        *cut(chat("") + chat("hi") + chat(None, "stop") + COUNT + DONE),
        path=CHAT, streaming=True, **WELL,
    ),
    "a chat that calls a tool": whole(
        json.dumps({"choices": [{"message": TOOL_CALL, "finish_reason": "tool_calls"}], **usage(9)}).encode(),
        path=CHAT, **WELL,
    ),
    "a stream of LiteLLM's, whose last chunks have no text": stream(
        text("a"), event({"choices": [{"finish_reason": "length", "index": 0}]}),
        event({"choices": [{"index": 0}], **usage(1)}), DONE,
        error=False, **WELL,
    ),
    "a stream of LiteLLM's that nobody asked to count": stream(
        text("a", **usage(0)), text("b", "length", **usage(0)), DONE,
        **WELL,
    ),
    "an error of LiteLLM's in a stream, after its server died": stream(
        text("a", **usage(0)), event({"error": {"message": "litellm.InternalServerError", "code": "500"}}), **BROKEN
    ),
    "prose in a stream": stream(
        *cut(b"".join(text(PROSE[at : at + 5]) for at in range(0, len(PROSE), 5)) + text("", "stop") + DONE), **WELL
    ),
    "a text that repeats itself": stream(*[text(" the")] * 99, text("", "stop"), DONE, empty=False),
    "a short text": whole(text("ha" * 31, "stop")[6:], empty=False),
    'a prompt that says "stream": true': whole(text("a", "stop")[6:], streaming=False),
}  # fmt: skip


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"accept-encoding" not in head.lower(), "what a server compresses cannot be read"
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    body = json.loads(await reader.readexactly(length) or "{}")
    kind = b"text/event-stream" if body.get("stream") else b"application/json"
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    for piece in CASES[body["prompt"]].pieces if body else ():
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.002)
    writer.write(b"0\r\n\r\n")
    writer.close()


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvoyRouter]:
    root, loop = tmp_path_factory.mktemp("openai"), asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = Thread(target=loop.run_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield start_before(openai_slots(url, "http://127.0.0.1:9"), root)
    finally:
        stop_router(root / "router")
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def ask(router: EnvoyRouter, names: Sequence[str]) -> list[ObservedRequest]:
    """Ask one after another; what the log says of them, in that order."""
    log = router.access_log()
    seen = log.end()

    async def one_by_one() -> None:
        async with aiohttp.ClientSession() as session:
            for name in names:
                url = f"http://127.0.0.1:{router.place.port}/v1/{CASES[name].path}"
                async with session.post(url, json={"prompt": name, "stream": CASES[name].stream}) as answer:
                    assert answer.status == 200
                    await answer.read()

    asyncio.run(one_by_one())
    return logged(log, seen, len(names))


def logged(log: AccessLog, since: LogCursor, count: int) -> list[ObservedRequest]:
    deadline = time.monotonic() + 60
    while len(found := [one for one in log.read(since)[0] if not one.in_flight]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return sorted(found, key=lambda request: request.started_at)


def test_tokens_end_and_errors_are_those_of_the_answer(router: EnvoyRouter) -> None:
    for name, request in zip(CASES, ask(router, list(CASES)), strict=True):
        expected = CASES[name].expected
        assert {field: getattr(request, field) for field in expected} == expected, name
        assert request.route == f"/{CASES[name].path}"


def test_how_much_a_text_repeats_itself_is_the_same_whole_or_cut_anywhere(router: EnvoyRouter) -> None:
    names = ("a whole answer", "prose in a stream", "a text that repeats itself", "a short text")
    prose, streamed, loop, short = (request.repetition for request in ask(router, names))
    assert prose == streamed == pytest.approx(0.05, abs=0.05)
    assert (loop, short) == (pytest.approx(0.99, abs=0.01), None)


def test_a_user_who_sends_slowly_makes_no_server_slow(router: EnvoyRouter) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for byte in json.dumps({"prompt": "a short text"}).encode():
            yield bytes([byte])
            await asyncio.sleep(0.03)

    async def once() -> None:
        url = f"http://127.0.0.1:{router.place.port}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, data=slowly()) as answer:
            await answer.read()

    log = router.access_log()
    seen, began = log.end(), time.monotonic()
    asyncio.run(once())
    assert time.monotonic() - began > 0.6
    assert logged(log, seen, 1)[0].total_milliseconds < 500


def test_users_reach_models_health_and_completions_and_nothing_else(router: EnvoyRouter) -> None:
    async def ask_all() -> dict[str, int]:
        found = {}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{router.place.port}") as session:
            for path in ("/health", "/v1/models", "/metrics", "/v1/load_lora_adapter", "/v2/models/llm"):
                async with session.get(path) as answer:
                    found[path] = answer.status
            async with session.post("/v1/load_lora_adapter", json={}) as answer:
                found["a command"] = answer.status
        return found

    found = asyncio.run(ask_all())
    assert {path for path, status in found.items() if status == 200} == {"/health", "/v1/models"}
    assert set(found.values()) == {200, 404}
