"""What users may ask for at their port: answers, health and metadata of the model, and nothing else; and how much."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from canary_site import Site
from hostile_client import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HOST,
    MAX_CONCURRENT_STREAMS,
    PREFACE,
    RESET,
    SETTINGS,
    ask,
    ask_in_chunks,
    frame,
    generation,
    get_headers,
    is_closed,
    server_settings,
)
from http_slots import HttpSlots
from test_envoy import both_up, shift, split
from waiting import until

from llm_pipeline.adapters.envoy import xds
from llm_pipeline.canary.router import all_to

pytestmark = pytest.mark.slow

GENERATE = "/v2/models/llm/generate"
JSON = {"content-type": "application/json"}
MIB = 1024 * 1024
SERVICE = "/inference.GRPCInferenceService/"
ASKED = [
    ("GET", "/v2"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/models/llm"),
    ("GET", "/v2/models/llm/ready"),
    ("POST", "/v2/models/llm/generate"),
    ("POST", "/v2/models/llm/generate?why=not"),
]
FORBIDDEN = [
    ("POST", "/v2/models/llm/infer"),
    ("POST", "/v2/repository/models/llm/unload"),
    ("POST", "/v2/repository/models/llm/load"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/logging"),
    ("GET", "/v2/logging"),
    ("POST", "/v2/trace/setting"),
    ("POST", "/v2/models/llm/trace/setting"),
    ("GET", "/v2/models/llm/config"),
    ("GET", "/v2/models/llm/stats"),
    ("GET", "/v2/models/stats"),
    ("POST", "/v2/systemsharedmemory/region/x/register"),
    ("POST", "/v2/cudasharedmemory/unregister"),
    ("GET", "/metrics"),
    ("GET", "/health"),
    ("GET", "/v1/embeddings"),
    ("GET", "/"),
    ("POST", "/v2/models/tensorrt_llm/generate"),
    ("GET", "/v2/models/llm/generate"),
    ("DELETE", "/v2/models/llm"),
    ("POST", "/v2/models/llm"),
    ("PUT", "/v2/models/llm/generate"),
    ("POST", "/v2/models/llm/versions/1/generate"),
    ("POST", f"{SERVICE}ModelInfer"),
]
DISGUISED = [
    "/v2//repository/models/llm/unload",
    "//v2/repository/models/llm/unload",
    "/v2/./repository/models/llm/unload",
    "/v2/models/../repository/models/llm/unload",
    "/v2/models/llm/generate/../../../repository/models/llm/unload",
    "/v2/models/llm/generate/..%2f..%2f..%2frepository/models/llm/unload",
    "/v2%2frepository%2fmodels%2fllm%2funload",
    "/v2/repository%2Fmodels/llm/unload",
    "/v2/repository/models/llm/%75nload",
    "/v2/%72epository/models/llm/unload",
    "/v2/models/%2e%2e/repository/models/llm/unload",
    "/v2\\repository\\models\\llm\\unload",
    "/v2/models/llm/generate;/../../../repository/models/llm/unload",
    "/V2/Repository/Models/llm/Unload",
    "/v2/repository/models/llm/unload/",
    "/v2/repository/models/llm/unload?/v2/models/llm/generate",
    "/v2/repository/models/llm/unload%00/v2/models/llm/generate",
    "/v2/repository/models/llm/unload%3f/v2/models/llm/generate",
    "http://users/v2/repository/models/llm/unload",
    "/v2/models/llm/versions/1/../../../../repository/models/llm/unload",
]
ADMIN_METHODS = (
    "RepositoryModelUnload", "RepositoryModelLoad", "RepositoryIndex", "LogSettings", "TraceSetting", "ModelConfig",
    "ModelStatistics", "SystemSharedMemoryRegister", "CudaSharedMemoryRegister", "SystemSharedMemoryUnregister",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A router with small limits before a server that obeys everybody, over HTTP and gRPC."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.control = HttpSlots(site.root, site.slots, grpc=True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(xds, "HEADER_SECONDS", 1.0)
            patch.setattr(xds, "MOST_CONNECTIONS", 40)
            site.up()
        yield site
    finally:
        site.down()


@pytest.fixture(scope="module")
def port(site: Site) -> int:
    return site.place.port


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_answers_health_and_metadata_are_served(port: int, method: str, path: str) -> None:
    body = generation() if method == "POST" else b""
    answer = ask(port, method, path, body, JSON)
    assert (answer.status, answer.server) == (200, "blue")


@pytest.mark.parametrize(("method", "path"), FORBIDDEN)
def test_everything_else_is_not_found_and_reaches_no_server(port: int, method: str, path: str) -> None:
    answer = ask(port, method, path, b"{}")
    assert (answer.status, answer.server) == (404, "")
    assert b"not offered" in answer.body


@pytest.mark.parametrize("path", DISGUISED)
def test_no_disguise_gets_a_path_through(port: int, path: str) -> None:
    answer = ask(port, "POST", path, b"{}")
    assert answer.server == ""
    assert answer.status in (400, 404)


@pytest.mark.parametrize("name", ["x-envoy-original-path", "x-original-url", "x-rewrite-url", "x-http-method-override"])
def test_no_header_renames_what_is_asked_for(port: int, name: str) -> None:
    hidden = {name: "/v2/repository/models/llm/unload"}
    answer = ask(port, "GET", "/v2/models/llm", b"", hidden | JSON)
    assert b'"path": "/v2/models/llm"' in answer.body


@pytest.mark.parametrize("claimed", [{}, {"x-forwarded-for": "10.0.0.1"}])
@pytest.mark.parametrize("name", ["x-envoy-upstream-rq-timeout-ms", "x-envoy-upstream-rq-per-try-timeout-ms"])
def test_no_header_sets_a_timeout(port: int, name: str, claimed: dict[str, str]) -> None:
    answers = [ask(port, "POST", GENERATE, generation(), {name: "1", **JSON, **claimed}) for _ in range(3)]
    assert {(one.status, one.fields["x-envoy-attempt-count"]) for one in answers} == {(200, "1")}


@pytest.mark.parametrize("path", [GENERATE, "/v1/completions"])
def test_a_request_that_says_it_is_too_large_is_refused_before_it_is_sent(port: int, path: str) -> None:
    answer = ask(port, "POST", path, b"", {"content-length": str(17 * MIB)})
    assert (answer.status, answer.server) == (413, "")
    error = json.loads(answer.body)["error"]
    assert (error["message"] if path == "/v1/completions" else error) == "the request is larger than 16 MiB"


def test_a_request_that_turns_out_too_large_is_refused(port: int) -> None:
    answer = ask_in_chunks(port, GENERATE, (b"x" * 65536 for _ in range(17 * 16)))
    assert (answer.status, answer.server) == (413, "")
    assert b"larger than 16 MiB" in answer.body


def test_a_grpc_call_that_is_too_large_reaches_no_server(port: int) -> None:
    code, message = asyncio.run(call(port, f"{SERVICE}ModelInfer", b"x" * (17 * MIB)))
    assert code not in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert message == b""


@pytest.mark.parametrize(
    "headers", [{"x-large": "x" * 70_000}, {f"x-{number}": "1" for number in range(150)}], ids=["large", "many"]
)
def test_huge_headers_are_refused(port: int, headers: dict[str, str]) -> None:
    answer = ask(port, "POST", GENERATE, generation(), headers | JSON)
    assert (answer.status, answer.server) == (431, "")


@pytest.mark.parametrize("host", ["host: users\r\n", ""], ids=["proxy", "health check"])
def test_a_proxy_or_a_health_check_may_speak_http_1_0(port: int, host: str) -> None:
    with socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(f"GET /v2/health/ready HTTP/1.0\r\n{host}\r\n".encode())
        assert b" 200 OK\r\n" in connection.recv(100)


def test_headers_that_arrive_slowly_do_not_hold_a_connection(port: int) -> None:
    with socket.create_connection((HOST, port), timeout=10) as slow:
        slow.sendall(f"POST {GENERATE} HTTP/1.1\r\nhost: users\r\n".encode())
        deadline = time.monotonic() + 10
        while not is_closed(slow, 0.2):
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):
                slow.sendall(b"x-drip: 1\r\n")


def test_no_route_limits_the_time_of_an_answer(site: Site) -> None:
    (table,) = json.loads(site.router.files.routes.read_text())["resources"][0]["virtual_hosts"]
    assert {route["route"]["timeout"] for route in table["routes"] if "route" in route} == {"0s"}


@pytest.mark.thorough
def test_an_answer_may_take_longer_than_any_limit_on_requests(site: Site, port: int) -> None:
    """Envoy's own limit on an answer is 15 seconds."""
    site.control.fault("blue", token_milliseconds=5_500.0)
    try:
        answer = ask(port, "POST", GENERATE, generation(tokens=4), JSON)
    finally:
        site.control.fault("blue")
    assert (answer.status, answer.server) == (200, "blue")


def is_served(port: int) -> bool:
    return ask(port, "POST", GENERATE, generation(), JSON).status == 200


def test_too_many_connections_leave_the_others_theirs(port: int) -> None:
    """Beyond the limit new ones are closed, and those that stand go on."""
    with contextlib.ExitStack() as stack:
        user = stack.enter_context(socket.create_connection((HOST, port), timeout=10))
        held = [stack.enter_context(socket.create_connection((HOST, port), timeout=10)) for _ in range(60)]
        until(lambda: sum(is_closed(one, 0.01) for one in held) >= 20)
        body = generation()
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: users\r\ncontent-length: {len(body)}\r\n"
        user.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        assert user.recv(100).startswith(b"HTTP/1.1 200")
    until(lambda: is_served(port))


def test_a_connection_has_so_many_streams_and_ends_when_they_are_reset_again_and_again(port: int) -> None:
    """A client that opens requests and takes each back at once makes work for others without waiting for any."""
    with socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        assert server_settings(connection)[MAX_CONCURRENT_STREAMS] == xds.STREAMS_PER_CONNECTION
        fields = get_headers("/v2/models/llm")
        with contextlib.suppress(OSError):
            for number in range(1, 40_001, 2):
                opened = frame(HEADERS, END_STREAM | END_HEADERS, number, fields)
                connection.sendall(opened + frame(RESET, 0, number, (8).to_bytes(4, "big")))
        assert is_closed(connection, 10)
    assert is_served(port)


async def call(port: int, path: str, message: bytes = b"") -> tuple[grpc.StatusCode, bytes]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            return grpc.StatusCode.OK, await channel.unary_unary(path)(message, timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code(), b""


@pytest.mark.parametrize(
    "path",
    [
        *(SERVICE + method for method in ADMIN_METHODS),
        "/inference.grpcinferenceservice/RepositoryModelUnload",
        "/inference.GRPCInferenceService/modelinfer",
        "/inference.GRPCInferenceService/ModelInfer/../RepositoryModelUnload",
        "/inference.GRPCInferenceService//RepositoryModelUnload",
        "/inference.GRPCInferenceService/ModelInfer%2f..%2fRepositoryModelUnload",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_grpc_methods_that_control_are_not_implemented(port: int, path: str) -> None:
    code, message = asyncio.run(call(port, path))
    assert code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)  # 400 to what is no path
    assert message == b""


@pytest.mark.parametrize(
    "path",
    [SERVICE + method for method in ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata",
                                     "ModelInfer")] + ["/grpc.health.v1.Health/Check"],
)  # fmt: skip
def test_grpc_methods_of_users_are_served(port: int, path: str) -> None:
    assert asyncio.run(call(port, path)) == (grpc.StatusCode.OK, b"blue")


def test_the_metadata_of_a_grpc_answer_names_the_release(site: Site) -> None:
    site.router.name_release("blue", "r1")

    async def names() -> set[str | None]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{site.place.port}") as channel:
            called = channel.unary_unary(f"{SERVICE}ModelInfer")(b"", timeout=10)
            return {dict(await called.initial_metadata()).get("x-llm-release")}

    until(lambda: asyncio.run(names()) == {"r1"})


def test_a_stream_of_grpc_which_can_end_triton_is_not_implemented_and_the_answer_says_what_is(port: int) -> None:
    async def refusal() -> grpc.aio.AioRpcError:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stream = channel.stream_stream(f"{SERVICE}ModelStreamInfer")(iter([b""]), timeout=10)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stream.read()
            return raised.value

    error = asyncio.run(refusal())
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "ask by /v1/chat/completions" in str(error.details())


def test_a_grpc_call_that_a_release_on_trial_refuses_is_answered_by_the_other_one(site: Site, port: int) -> None:
    both_up(site)
    shift(site, split(50))
    try:
        answers = [asyncio.run(call(port, f"{SERVICE}ModelInfer", b"refused by green")) for _ in range(12)]
    finally:
        shift(site, all_to("blue", owner="t", epoch=2))
        site.control.stop("green")
    assert set(answers) == {(grpc.StatusCode.OK, b"blue")}
