"""What the router's log says of gRPC answers, through the real proxy: their statuses, and errors inside messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from threading import Thread
from typing import Any

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2 as messages

from llm_pipeline.canary.access_log import AccessLog, LogCursor
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.router import all_to

pytestmark = pytest.mark.slow

SERVICE = "inference.GRPCInferenceService"
TOKEN = b"\x12\x06\x0a\x03llm\x22\x00"
"""A response, whose own first field has the tag that an error has one level up."""

LONG = b"\x12\xff\x7f" + b"\x0a\x05" * 8192
MENTIONS = b"\x12\x09\x32\x07\x0a\x05error"
ERROR = b"\x0a\x11CUDA error: 700\x0a\x12\x00"
NO_ERROR = b"\x0a\x00" + TOKEN

STREAMS: dict[str, tuple[bytes, ...]] = {
    "whole": (TOKEN, TOKEN),
    "long": (LONG, TOKEN, LONG),
    "mentions": (MENTIONS, TOKEN),
    "empty messages": (b"", b"", TOKEN),
    "an empty error": (NO_ERROR, TOKEN),
    "fails at once": (ERROR,),
    "fails in the middle": (TOKEN, LONG, b"", ERROR, TOKEN),
}
STATUSES = {
    "OK": (False, False),
    "INVALID_ARGUMENT": (True, False),
    "NOT_FOUND": (True, False),
    "UNIMPLEMENTED": (True, False),
    "INTERNAL": (True, True),
    "UNAVAILABLE": (True, True),
    "ABORTED": (True, True),
    "CANCELLED": (True, True),
}


PROSE = (
    'What users read of a model is mostly words, a few "signs" between them, and hardly ever the same six letters\n'
    "twice in so short a text; so a share of what came before says that this is a loop long before a person does."
)
RAW = {"text_output": "BYTES", "output_tokens": "INT32", "finish_reason": "BYTES", "served_version": "INT32"}
PARTS = [PROSE[at : at + 5] for at in range(0, len(PROSE), 5)]


def response(text: str | None = None, tokens: int = 1, reason: str | None = "", *, typed: bool = False) -> Any:
    """As the server answers, with raw or with typed contents; what is None was not asked for."""
    found = messages.ModelInferResponse(model_name="llm", model_version="1", id="one")
    found.parameters["triton_final_response"].bool_param = False
    values = {"text_output": text, "output_tokens": tokens, "finish_reason": reason, "served_version": 3}
    for name, value in values.items():
        if value is None:
            continue
        output = found.outputs.add(name=name, datatype=RAW[name], shape=[1])
        encoded = value.encode() if isinstance(value, str) else value
        if typed and isinstance(encoded, bytes):
            output.contents.bytes_contents.append(encoded)
        elif typed:
            output.contents.int_contents.append(encoded)
        else:
            raw = encoded if isinstance(encoded, bytes) else encoded.to_bytes(4, "little")
            length = len(raw).to_bytes(4, "little") if isinstance(encoded, bytes) else b""
            found.raw_output_contents.append(length + raw)
    return found


def streamed(*parts: Any) -> tuple[bytes, ...]:
    return tuple(messages.ModelStreamInferResponse(infer_response=part).SerializeToString() for part in parts)


SAID = {"output_tokens": 60, "finish_reason": "stop", "empty": False, "truncated": False}
NOTHING = {"output_tokens": None, "empty": None, "truncated": None, "repetition": None, "odd_characters": None}
ANSWERS: dict[str, tuple[Any, dict[str, object]]] = {
    "raw": (response(PROSE, 60, "stop"), SAID),
    "typed": (response(PROSE, 60, "stop", typed=True), SAID),
    "no text": (response("", 0, "stop"), {"empty": True, "truncated": False, "output_tokens": 0}),
    "given up": (response("a", 1, "cancelled"), {"empty": False, "truncated": True}),
    "no end asked for": (response("a", 1, None), {"empty": False, "truncated": None, "output_tokens": 1}),
    "no text asked for": (response(None, 1, "stop"), NOTHING),
    "signs": (response("".join(map(chr, range(33, 65))) * 3, 9, "stop"), {"empty": False}),
    "a loop": (response(" the" * 99, 99, "stop"), {"empty": False}),
    "too long": (response(PROSE * 400, 24_000, "stop"), NOTHING),
}
READ_STREAMS = {
    "in parts": (streamed(*(response(part) for part in PARTS), response("", 0, "stop")), {**SAID, "output_tokens": 44}),
    "without an end": (streamed(response("a"), response("b")), {"output_tokens": 2, "truncated": True}),
    "one too long": (streamed(response(PROSE), response(PROSE * 400), response("", 0, "stop")), NOTHING),
    "nothing": ((), NOTHING),
}
STREAMS |= {name: parts for name, (parts, _) in READ_STREAMS.items()}


async def answer(name: str, context: grpc.aio.ServicerContext) -> None:
    if name in STATUSES and name != "OK":
        await context.abort(grpc.StatusCode[name], "as asked")


async def infer(asked: bytes, context: grpc.aio.ServicerContext) -> bytes:
    await answer(asked.decode(), context)
    if asked.decode() in ANSWERS:
        return bytes(ANSWERS[asked.decode()][0].SerializeToString())
    return ERROR  # of a unary answer the first field is the model's name


async def stream(asked: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
    async for name in asked:
        for message in STREAMS.get(name.decode(), (TOKEN,)):
            yield message
        await answer(name.decode(), context)


@pytest.fixture(scope="module")
def served(quiet_site) -> Iterator[None]:
    """A server in the green slot that answers as it is asked to, and has all traffic."""
    loop = asyncio.new_event_loop()

    async def start() -> grpc.aio.Server:
        methods = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream),
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        server.add_insecure_port(f"127.0.0.1:{quiet_site.slots['green'].grpc}")
        await server.start()
        return server

    server = loop.run_until_complete(start())
    thread = Thread(target=loop.run_forever)
    thread.start()
    revision = quiet_site.router.write(all_to("green", owner="t", epoch=1), None)
    while not quiet_site.router.converged(revision):
        time.sleep(0.01)
    yield
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


async def call(channel: grpc.aio.Channel, method: str, name: str) -> None:
    try:
        if method == "ModelInfer":
            await channel.unary_unary(f"/{SERVICE}/{method}")(name.encode(), timeout=10)
        else:
            stream = channel.stream_stream(f"/{SERVICE}/{method}")(timeout=10)
            await stream.write(name.encode())
            await stream.done_writing()
            assert len([message async for message in stream]) == len(STREAMS.get(name, (TOKEN,)))
    except grpc.aio.AioRpcError as error:
        assert error.code().name == name  # noqa: PT017


def ask_all(site, asked: Sequence[tuple[str, str]]) -> list[ObservedRequest]:
    """One request after another, and what the log says of them, in that order."""
    log = AccessLog(site.router.files.access_log, site.router.slot_of_address)
    before: LogCursor = log.end()

    async def one_by_one() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{site.place.port}") as channel:
            for method, name in asked:
                await call(channel, method, name)

    asyncio.run(one_by_one())
    deadline = time.monotonic() + 60
    while len(found := [one for one in log.read(before)[0] if not one.in_flight]) < len(asked):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return sorted(found, key=lambda request: request.started_at)


@pytest.mark.usefixtures("served")
def test_what_an_answer_is_like_is_read_of_messages_too(quiet_site) -> None:
    asked = [*(("ModelInfer", name) for name in ANSWERS), *(("ModelStreamInfer", name) for name in READ_STREAMS)]
    found = {name: request for (_, name), request in zip(asked, ask_all(quiet_site, asked), strict=True)}
    for name, (_, expected) in {**ANSWERS, **READ_STREAMS}.items():
        assert {field: getattr(found[name], field) for field in expected} == expected, name
        assert not found[name].fault, name
    prose = found["raw"]
    assert prose.repetition == pytest.approx(0.02, abs=0.03)
    assert prose.odd_characters == pytest.approx(0.05, abs=0.03)
    for name in ("typed", "in parts"):
        assert (found[name].repetition, found[name].odd_characters) == (prose.repetition, prose.odd_characters), name
    assert found["a loop"].repetition == pytest.approx(0.99, abs=0.01)
    assert found["signs"].odd_characters == pytest.approx(1.0, abs=0.01)
    assert found["in parts"].per_token_milliseconds is not None


@pytest.mark.usefixtures("served")
def test_an_error_inside_a_stream_of_status_0_is_a_fault(quiet_site) -> None:
    asked = [("ModelStreamInfer", name) for name in STREAMS]
    for name, request in zip(STREAMS, ask_all(quiet_site, asked), strict=True):
        failed = name.startswith("fails")
        assert (request.fault, request.error, request.lost, request.streaming) == (failed, failed, failed, True), name


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_a_status_is_read_as_a_refusal_or_as_a_fault(quiet_site, method) -> None:
    for status, request in zip(STATUSES, ask_all(quiet_site, [(method, name) for name in STATUSES]), strict=True):
        error, fault = STATUSES[status]
        found = (request.error, request.fault, request.refused, request.lost)
        assert found == (error, fault, error and not fault, error), status
