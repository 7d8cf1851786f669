"""What the router's log says of gRPC answers, through the real proxy: their statuses, and errors inside messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from threading import Thread

import grpc.aio
import pytest

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


async def answer(name: str, context: grpc.aio.ServicerContext) -> None:
    if name in STATUSES and name != "OK":
        await context.abort(grpc.StatusCode[name], "as asked")


async def infer(asked: bytes, context: grpc.aio.ServicerContext) -> bytes:
    await answer(asked.decode(), context)
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
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def ask(site, method: str, name: str) -> ObservedRequest:
    """One request, and what the log says of it."""
    log = AccessLog(site.router.files.access_log, site.router.slot_of_address)
    before: LogCursor = log.end()

    async def once() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{site.place.port}") as channel:
            try:
                if method == "ModelInfer":
                    await channel.unary_unary(f"/{SERVICE}/{method}")(name.encode(), timeout=10)
                else:
                    call = channel.stream_stream(f"/{SERVICE}/{method}")(timeout=10)
                    await call.write(name.encode())
                    await call.done_writing()
                    assert len([message async for message in call]) == len(STREAMS.get(name, (TOKEN,)))
            except grpc.aio.AioRpcError as error:
                assert error.code().name == name  # noqa: PT017

    asyncio.run(once())
    deadline = time.monotonic() + 10
    while not (found := [one for one in log.read(before)[0] if not one.in_flight]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (request,) = found
    return request


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("name", STREAMS)
def test_an_error_inside_a_stream_of_status_0_is_a_fault(quiet_site, name) -> None:
    request = ask(quiet_site, "ModelStreamInfer", name)
    failed = name.startswith("fails")
    assert (request.fault, request.error, request.lost) == (failed, failed, failed)
    assert request.streaming


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("status", STATUSES)
def test_a_status_is_read_as_a_refusal_or_as_a_fault(quiet_site, method, status) -> None:
    request = ask(quiet_site, method, status)
    error, fault = STATUSES[status]
    assert (request.error, request.fault, request.refused, request.lost) == (error, fault, error and not fault, error)
