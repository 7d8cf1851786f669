"""What users may ask for at their port: answers, health and metadata of the model, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from canary_site import Site
from hostile_client import ask, generation
from http_slots import HttpSlots

pytestmark = pytest.mark.slow

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
    """A router before a server that obeys everybody, over HTTP and gRPC."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.control = HttpSlots(site.root, site.slots, grpc=True)
    try:
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
    answer = ask(port, method, path, body, {"content-type": "application/json"})
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
    hidden = {name: "/v2/repository/models/llm/unload", "content-type": "application/json"}
    answer = ask(port, "GET", "/v2/models/llm", b"", hidden)
    assert b'"path": "/v2/models/llm"' in answer.body


def test_a_request_that_says_it_is_too_large_is_refused_before_it_is_sent(port: int) -> None:
    answer = ask(port, "POST", "/v2/models/llm/generate", b"", {"content-length": str(17 * 1024 * 1024)})
    assert (answer.status, answer.server) == (413, "")
    assert b"larger than 16 MiB" in answer.body


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

    deadline = time.monotonic() + 60
    while (found := asyncio.run(names())) != {"r1"}:
        assert time.monotonic() < deadline, found


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
