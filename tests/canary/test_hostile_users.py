"""Large requests are answered by the other slot or refused, and nobody at the port harms the others; real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest
from canary_site import Site
from hostile_client import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HOST,
    PREFACE,
    RESET,
    SETTINGS,
    Answer,
    ask,
    ask_in_chunks,
    frame,
    generation,
    get_headers,
)
from http_slots import HttpSlots
from test_envoy import both_up, shift, split

from llm_pipeline.adapters.envoy.adapter import UserLimits
from llm_pipeline.adapters.envoy.xds import listener
from llm_pipeline.canary.router import access_log_of

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

GENERATE = "/v2/models/llm/generate"
INFER = "/inference.GRPCInferenceService/ModelInfer"
JSON = {"content-type": "application/json"}
MIB = 1024 * 1024
LIMITS = UserLimits(largest_request_mib=4, connections=40, memory_mib=512)
PAUSE = 0.2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A router with small limits before two servers of both protocols."""
    place = Site(tmp_path_factory.mktemp("hostile"))
    place.control = HttpSlots(place.root, place.slots, grpc=True)
    place.place = place.place.model_copy(update={"limits": LIMITS})
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listener, "STREAMS_PER_CONNECTION", 8)
            patch.setattr(listener, "HEADER_SECONDS", 1.0)
            place.up()
            both_up(place)
            yield place
    finally:
        place.down()


@pytest.fixture
def port(site: Site) -> Iterator[int]:
    """The users' port, half of whose traffic is on trial; both servers are healthy before and after."""
    shift(site, split(50))
    yield site.place.port
    site.control.fault("green")
    await_usable(site)


def await_usable(site: Site) -> None:
    deadline = time.monotonic() + 60
    while not site.router.usable("green"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def large(mebibytes: float) -> bytes:
    return generation("x" * int(mebibytes * MIB))


def well_behaved(port: int, count: int = 10) -> Counter[int]:
    """What other users get meanwhile."""
    return Counter(ask(port, "POST", GENERATE, generation(), JSON).status for _ in range(count))


@pytest.mark.parametrize("mebibytes", [0.5, 2.0, 3.9])
def test_a_large_request_is_answered_by_the_other_slot_when_one_fails_it(site, port, mebibytes) -> None:
    site.control.fault("green", failure_fraction=1.0)
    body = large(mebibytes)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: ask(port, "POST", GENERATE, body, JSON), range(16)))
    assert Counter((answer.status, answer.server) for answer in answers) == {(200, "blue"): 16}


def test_a_large_request_survives_a_server_that_was_killed(site, port) -> None:
    site.control.stop("green")
    try:
        body = large(2.0)
        answers = [ask(port, "POST", GENERATE, body, JSON) for _ in range(12)]
    finally:
        site.control.replace("green", None)
    assert Counter((answer.status, answer.server) for answer in answers) == {(200, "blue"): 12}


def test_a_large_grpc_call_is_answered_by_the_other_slot(site, port) -> None:
    site.control.fault("green", failure_fraction=1.0)

    async def calls() -> list[bytes]:
        async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
            call = channel.unary_unary(INFER)
            return [await call(b"x" * (2 * MIB), timeout=10) for _ in range(12)]

    assert set(asyncio.run(calls())) == {b"blue"}


def test_a_request_that_turns_out_too_large_is_refused(port) -> None:
    answer = ask_in_chunks(port, GENERATE, (b"x" * 65536 for _ in range(5 * 16)))
    assert (answer.status, answer.server) == (413, "")
    assert b"larger than 4 MiB" in answer.body


def test_a_grpc_call_that_is_too_large_is_refused(port) -> None:
    async def refusal() -> grpc.aio.AioRpcError:
        async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(INFER)(b"x" * (5 * MIB), timeout=10)
            return raised.value

    error = asyncio.run(refusal())
    assert error.code() not in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert "larger than 4 MiB" in str(error.details())


def test_headers_that_arrive_slowly_do_not_hold_a_connection(port) -> None:
    with socket.create_connection((HOST, port), timeout=10) as slow:
        slow.sendall(b"POST /v2/models/llm/generate HTTP/1.1\r\nhost: users\r\n")
        began, ended = time.monotonic(), False
        while not ended and time.monotonic() - began < 8:
            with contextlib.suppress(BlockingIOError, TimeoutError):
                slow.settimeout(PAUSE)
                ended = not slow.recv(4096).startswith(b"HTTP/1.1 2")
            if not ended:
                with contextlib.suppress(OSError):
                    slow.sendall(b"x-drip: 1\r\n")
    assert ended


def test_too_many_connections_leave_the_others_theirs(port) -> None:
    """Beyond the limit new ones are closed, those that stand go on, and the administration is not locked out."""
    with contextlib.ExitStack() as stack:
        user = stack.enter_context(socket.create_connection((HOST, port), timeout=10))
        held = [stack.enter_context(socket.create_connection((HOST, port), timeout=10)) for _ in range(60)]
        time.sleep(1.0)
        closed = sum(is_closed(one) for one in held)
        assert closed >= 20
        body = generation()
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: users\r\ncontent-length: {len(body)}\r\n"
        user.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        assert user.recv(100).startswith(b"HTTP/1.1 200")
    wait_for(lambda: well_behaved(port, 1) == {200: 1})


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    "headers",
    [{"x-large": "x" * 70_000}, {f"x-{number}": "1" for number in range(150)}],
    ids=["large", "many"],
)
def test_huge_headers_are_refused(port, headers) -> None:
    answer = ask(port, "POST", GENERATE, generation(), headers | JSON)
    assert (answer.status, answer.server) == (431, "")


def test_streams_that_are_opened_and_reset_end_their_connection_only(port) -> None:
    """A client that opens requests and takes each back at once makes work for others without waiting for any."""
    gone = threading.Event()

    def resets() -> None:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=10) as connection:
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
            fields = get_headers("/v2/models/llm")
            for number in range(1, 40_001, 2):
                pair = frame(HEADERS, END_STREAM | END_HEADERS, number, fields)
                connection.sendall(pair + frame(RESET, 0, number, (8).to_bytes(4, "big")))
            while connection.recv(65536):
                pass
        gone.set()

    thread = threading.Thread(target=resets)
    thread.start()
    assert well_behaved(port) == {200: 10}
    thread.join(timeout=20)
    assert gone.is_set()


def test_one_connection_has_so_many_streams_and_the_rest_wait(port) -> None:
    async def calls() -> list[bytes]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"{HOST}:{port}", options=options) as channel:
            call = channel.unary_unary(INFER)
            return await asyncio.gather(*(call(b"", timeout=20) for _ in range(60)))

    assert len(asyncio.run(calls())) == 60


def attempts(answer: Answer) -> str:
    return answer.fields.get("x-envoy-attempt-count", "")


def test_a_long_stream_is_legal(site, port) -> None:
    """Longer than any limit on headers, with a token now and then."""
    site.control.fault("green", token_milliseconds=700.0)
    site.control.fault("blue", token_milliseconds=700.0)
    try:
        answer = ask(port, "POST", f"{GENERATE}_stream", generation(tokens=5), JSON)
    finally:
        site.control.fault("blue")
    assert answer.status == 200
    assert answer.body.count(b"data: ") == 5


def test_a_grpc_call_that_both_versions_refuse_is_nobodys_fault(site, port) -> None:
    site.logged()
    end = access_log_of(site.router).end()

    async def codes() -> list[grpc.StatusCode]:
        async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
            calls = [channel.unary_unary(INFER)(b"refused", timeout=10) for _ in range(30)]
            return [await call.code() for call in calls]

    assert Counter(asyncio.run(codes())) == {grpc.StatusCode.INVALID_ARGUMENT: 30}
    seen = site.logged(end)
    assert Counter((one.refused, one.fault) for one in seen) == {(True, False): 30}
    assert {one.arm for one in seen} == {"blue", "green"}


def test_what_the_router_refuses_itself_is_nobodys_fault(site, port) -> None:
    site.logged()
    end = access_log_of(site.router).end()
    answers = [ask_in_chunks(port, GENERATE, (b"x" * 65536 for _ in range(5 * 16))) for _ in range(6)]
    answers += [ask(port, "POST", "/v2/logging", b"{}") for _ in range(6)]
    assert Counter(answer.status for answer in answers) == {413: 6, 404: 6}
    seen = site.logged(end)
    assert not any(one.fault for one in seen)
