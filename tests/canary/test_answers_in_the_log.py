"""What the router's log says of answers, through the real proxy, however the server cuts them into pieces."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from threading import Thread

import aiohttp
import pytest

from llm_pipeline.canary.access_log import AccessLog, LogCursor
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.router import all_to

pytestmark = pytest.mark.slow

PIECES: dict[str, Sequence[bytes]] = {}


def event(text: str, tokens: int, reason: str = "") -> bytes:
    chunk = {"model_name": "llm", "text_output": text, "output_tokens": tokens, "finish_reason": reason}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def cut_words(text: str) -> list[str]:
    return [text[at : at + 5] for at in range(0, len(text), 5)]


STREAM = event("a", 1) + event('say \\"output_tokens\\": 9,', 12) + event("", 1, "stop")

GARBLED = {"output_tokens": 100, "finish_reason": "stop", "empty": False}
PROSE = (
    "What users read of a model is mostly words, a few signs between them, and hardly ever the same six letters twice "
    'in so short a text; so a share of what came before says "this is a loop" long before a person does. \u00e9t\u00e9'
)

CASES: dict[str, tuple[str, Sequence[bytes], dict[str, object]]] = {
    "a stream in its events": (
        "generate_stream",
        [event("a", 1), event("b", 12), event("", 1, "length")],
        {"output_tokens": 14, "finish_reason": "length", "empty": False, "truncated": False},
    ),
    "a stream cut anywhere": (
        "generate_stream",
        cut(STREAM, 7),
        {"output_tokens": 14, "finish_reason": "stop", "empty": False, "truncated": False},
    ),
    "a number cut in two": (
        "generate_stream",
        [STREAM[: STREAM.index(b"12,") + 1], STREAM[STREAM.index(b"12,") + 1 :]],
        {"output_tokens": 14, "finish_reason": "stop"},
    ),
    "a unary answer cut anywhere": (
        "generate",
        cut(STREAM[6:].partition(b"\n")[0].replace(b'"finish_reason": ""', b'"finish_reason": "length"'), 5),
        {"output_tokens": 1, "finish_reason": "length", "empty": False, "truncated": False},
    ),
    "a stream without its final chunk": (
        "generate_stream",
        [event("a", 1), event("b", 1)],
        {"output_tokens": 2, "finish_reason": "", "truncated": True},
    ),
    "a stream that the server gave up": (
        "generate_stream",
        [event("a", 1), event("", 0, "cancelled")],
        {"finish_reason": "cancelled", "truncated": True},
    ),
    "an answer without text": ("generate", [event("", 3, "stop")[6:]], {"output_tokens": 3, "empty": True}),
    "a stream of nothing": ("generate_stream", [], {"output_tokens": None, "empty": True, "truncated": True}),
    "a text that repeats itself": ("generate_stream", [event(" the", 1)] * 99 + [event("", 1, "stop")], GARBLED),
    "a text of signs": ("generate", [event("".join(map(chr, range(33, 65))) * 3, 9, "stop")[6:]], {"empty": False}),
    "prose": ("generate", [event(PROSE, 60, "stop")[6:]], {"empty": False, "output_tokens": 60}),
    "prose cut anywhere": ("generate", cut(event(PROSE, 60, "stop")[6:], 3), {"empty": False, "output_tokens": 60}),
    "prose in a stream": ("generate_stream", [event(word, 1) for word in cut_words(PROSE)], {"empty": False}),
    "short": ("generate", [event("ha" * 31, 31, "stop")[6:]], {"empty": False}),
    "an error cut in two": (
        "generate_stream",
        [event("a", 1), b'data: {"er', b'ror":"broke"}\n\n'],
        {"lost": True, "fault": True},
    ),
}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    name = json.loads(await reader.readexactly(length))["text_input"]
    kind = b"text/event-stream" if b"_stream" in head.split(b"\r\n")[0] else b"application/json"
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\ntransfer-encoding: chunked\r\n\r\n")
    for piece in CASES[name][1]:
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.002)
    writer.write(b"0\r\n\r\n")
    writer.close()


@pytest.fixture
def pieces(site) -> Iterator[None]:
    """A server in the green slot that writes what the case says, and has all traffic."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", site.slots["green"].http))
    thread = Thread(target=loop.run_forever)
    thread.start()
    revision = site.router.write(
        all_to("green", owner="t", epoch=1).model_copy(update={"sticky_header": "x-user"}), None
    )
    while not site.router.converged(revision):
        time.sleep(0.01)
    yield
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


def ask(site, names: Sequence[str], headers: Sequence[dict[str, str]] | None = None) -> list[ObservedRequest]:
    """Ask one after another; what the log says of them, in that order."""

    async def one_by_one() -> None:
        async with aiohttp.ClientSession() as session:
            for name, extra in zip(names, headers or [{}] * len(names), strict=True):
                url = f"{site.url}/v2/models/llm/{CASES[name][0]}"
                async with session.post(url, json={"text_input": name}, headers=extra) as answer:
                    await answer.read()

    asyncio.run(one_by_one())
    log, deadline = AccessLog(site.router.files.access_log, site.router.slot_of_address), time.monotonic() + 60
    while len(found := log.read(LogCursor())[0]) < len(names):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return sorted(found, key=lambda request: request.started_at)


@pytest.mark.usefixtures("pieces")
def test_tokens_finish_reason_emptiness_and_truncation_are_those_of_the_answer(site) -> None:
    for name, request in zip(CASES, ask(site, list(CASES)), strict=True):
        expected = CASES[name][2]
        assert {field: getattr(request, field) for field in expected} == expected, name
    assert request.request_bytes == len(json.dumps({"text_input": name}))


@pytest.mark.usefixtures("pieces")
def test_a_session_is_known_by_a_fingerprint_and_never_by_its_name(site) -> None:
    name = "a stream in its events"
    headers = [{"x-user": "alice-secret"}, {"x-user": "bob"}, {"x-user": "alice-secret"}, {}]
    first, other, again, without = (request.session for request in ask(site, [name] * 4, headers))
    assert first == again != other
    assert first is not None
    assert other is not None
    assert without is None
    assert "alice" not in site.router.files.access_log.read_text()


@pytest.mark.usefixtures("pieces")
def test_time_per_output_token_is_that_of_the_tokens_after_the_first(site) -> None:
    (request,) = ask(site, ["a stream cut anywhere"])
    assert request.stream_milliseconds is not None
    assert request.stream_milliseconds > 20
    assert request.per_token_milliseconds == pytest.approx(request.stream_milliseconds / 13)


@pytest.mark.usefixtures("pieces")
def test_what_a_text_is_like_is_the_same_whole_or_cut_anywhere(site) -> None:
    cases = (
        "prose",
        "prose cut anywhere",
        "prose in a stream",
        "a text that repeats itself",
        "a text of signs",
        "short",
    )
    found = dict(zip(cases, ask(site, cases), strict=True))
    prose = found["prose"]
    assert prose.repetition == pytest.approx(0.02, abs=0.03)
    assert prose.odd_characters == pytest.approx(0.06, abs=0.04)
    whole = (prose.repetition, prose.odd_characters)
    assert (found["prose cut anywhere"].repetition, found["prose cut anywhere"].odd_characters) == whole
    assert (found["prose in a stream"].repetition, found["prose in a stream"].odd_characters) == whole
    assert found["a text that repeats itself"].repetition == pytest.approx(0.99, abs=0.01)
    assert found["a text that repeats itself"].odd_characters == 0.0
    assert found["a text of signs"].odd_characters == pytest.approx(1.0, abs=0.01)
    assert (found["short"].repetition, found["short"].odd_characters) == (None, None)


@pytest.mark.usefixtures("pieces")
def test_a_user_who_sends_slowly_makes_no_server_slow(site) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for byte in json.dumps({"text_input": "short"}).encode():
            yield bytes([byte])
            await asyncio.sleep(0.03)

    async def once() -> None:
        url = f"{site.url}/v2/models/llm/generate"
        async with aiohttp.ClientSession() as session, session.post(url, data=slowly()) as answer:
            await answer.read()

    began, log = time.monotonic(), AccessLog(site.router.files.access_log, site.router.slot_of_address)
    asyncio.run(once())
    assert time.monotonic() - began > 0.6
    while not (found := log.read(LogCursor())[0]):
        assert time.monotonic() < began + 20
        time.sleep(0.05)
    assert found[0].total_milliseconds < 500
