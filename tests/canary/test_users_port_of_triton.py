"""What users can do to a real Triton through a real Envoy."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from canary_site import Site
from hostile_client import HOST, ask, generation
from production_site import MODEL_PYTHON, TOY, TRITON_HOME
from tritonclient.utils import InferenceServerException

from llm_pipeline.serving.triton_server import start_server, stop_server

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

JSON = {"content-type": "application/json"}


class TritonSite(Site):
    """Triton with the toy model in blue."""

    def up(self) -> None:
        repository = Path(shutil.copytree(TOY, self.root / "repository", ignore=shutil.ignore_patterns("__pycache__")))
        ports = self.slots["blue"]
        start_server(
            repository, ports, triton_home=TRITON_HOME, python=MODEL_PYTHON, state=self.root / "triton", digest="a" * 64
        )
        self.start_router()

    def down(self) -> None:
        super().down()
        stop_server(self.root / "triton")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not TRITON_HOME.exists() or not MODEL_PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    place = TritonSite(tmp_path_factory.mktemp("triton"))
    try:
        place.up()
        yield place
    finally:
        place.down()


@pytest.fixture
def users(site: Site) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"{HOST}:{site.place.port}") as client:
        yield client


def answers(site: Site) -> bool:
    answer = ask(site.place.port, "POST", "/v2/models/llm/generate", generation("a b", 3), JSON)
    return answer.status == 200 and b'"text_output":" a b a"' in answer.body


def log_settings(site: Site) -> object:
    """At the server's own address, which is its operator's."""
    with urllib.request.urlopen(f"http://{HOST}:{site.slots['blue'].http}/v2/logging", timeout=5) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/repository/models/llm/unload", b"{}"),
        ("/v2/repository/models/llm/load", b'{"parameters": {"config": "{}"}}'),
        ("/v2/repository/index", b"{}"),
        ("/v2/logging", b'{"log_verbose_level": 9}'),
        ("/v2/trace/setting", b'{"trace_level": ["TENSORS"]}'),
        ("/v2/systemsharedmemory/region/x/register", b'{"key": "/x", "byte_size": 1}'),
    ],
)
def test_no_user_controls_the_server_over_http(site, path: str, body: bytes) -> None:
    before = log_settings(site)
    assert ask(site.place.port, "POST", path, body, JSON).status == 404
    assert answers(site)
    assert log_settings(site) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda client: client.unload_model("llm"),
        lambda client: client.load_model("llm"),
        lambda client: client.get_model_repository_index(),
        lambda client: client.update_log_settings({"log_verbose_level": 9}),
        lambda client: client.update_trace_settings(settings={"trace_level": ["TENSORS"]}),
        lambda client: client.get_inference_statistics(),
        lambda client: client.get_model_config("llm"),
        lambda client: client.register_system_shared_memory("x", "/x", 1),
    ],
    ids=["unload", "load", "index", "log", "trace", "statistics", "config", "shared memory"],
)
def test_no_user_controls_the_server_over_grpc(site, users, act) -> None:
    with pytest.raises(InferenceServerException) as raised:
        act(users)
    assert "UNIMPLEMENTED" in str(raised.value.status())
    assert answers(site)


def test_health_and_metadata_are_served_over_both(site, users) -> None:
    assert users.is_server_live()
    assert users.is_server_ready()
    assert users.is_model_ready("llm")
    assert users.get_model_metadata("llm").name == "llm"
    assert users.get_server_metadata().version
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/llm", "/v2/models/llm/ready"):
        assert ask(site.place.port, "GET", path).status == 200, path


def test_a_stream_is_served_over_http(site) -> None:
    whole = ask(site.place.port, "POST", "/v2/models/llm/generate_stream", generation("a b c", 4), JSON)
    assert whole.status == 200
    assert b'data: {"finish_reason":"length"' in whole.body
