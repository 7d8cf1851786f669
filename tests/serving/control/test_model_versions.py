"""Versions of a model that come and go on the real server, under traffic."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from llm_pipeline.adapters.existing_triton.model_control import ModelControl, ModelRefused, open_model_control
from llm_pipeline.adapters.existing_triton.model_directory import LocalModelDirectory
from llm_pipeline.adapters.existing_triton.model_versions import ModelVersions, candidate_config, differing_fields
from llm_pipeline.base.errors import IntegrityError, Transient, Unsupported
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import Generation, GenerationClient, GenerationRequest
from llm_pipeline.serving.identity import DIGEST_PARAMETER, require_served
from llm_pipeline.serving.protocols import TritonProtocol

pytestmark = pytest.mark.slow

RATE_PER_SECOND = 30


class Served:
    """The running server, and the control of its versions."""

    def __init__(self, running, protocol: str) -> None:
        self.pid, self.endpoint = running.server.pid, running.endpoint
        self.files = running.repository / "llm"
        self.control: ModelControl = open_model_control(self.endpoint, protocol)
        self.versions = ModelVersions(self.control, LocalModelDirectory(self.files, link=True))

    def await_unloaded(self) -> None:
        """Wait until only ready versions have a process: a load before that may crash the server (2.51)."""
        deadline = time.monotonic() + 60
        while len(self.stubs()) > len(self.versions.ready()) and time.monotonic() < deadline:
            time.sleep(0.05)

    def stubs(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.pid).children(recursive=True) if "stub" in child.name()]

    def kept(self) -> list[str]:
        return sorted(entry.name for entry in self.files.iterdir())

    def answers(self, version: str = "") -> Generation:
        async def ask() -> Generation:
            path = f"/v2/models/llm{version}"
            async with GenerationClient.of(self.endpoint, protocol=TritonProtocol(path), timeout_seconds=5) as client:
                return await client.generate(GenerationRequest("a b", 2))

        return asyncio.run(ask())


@pytest.fixture(params=["http", "grpc"])
def served(running, request) -> Iterator[Served]:
    served = Served(running, request.param)
    served.await_unloaded()
    yield served
    served.control.close()


async def traffic(endpoint: Endpoint, meanwhile: Callable[[], int]) -> tuple[list[Generation], int]:
    """Requests before, during and after a call; each is 0.3 s long, so that many are in flight at every moment."""
    call: asyncio.Task[int] | None = None
    async with GenerationClient.of(endpoint, timeout_seconds=20) as client:
        tasks, after = [], 0
        while after < 15:
            tasks.append(asyncio.create_task(client.stream(GenerationRequest("a b c", 15, ignore_eos=True))))
            await asyncio.sleep(1 / RATE_PER_SECOND)
            if call is None and len(tasks) == 15:
                call = asyncio.create_task(asyncio.to_thread(meanwhile))
            after += call is not None and call.done()
        return await asyncio.gather(*tasks), await call


@pytest.mark.parametrize("served", ["http"], indirect=True)
def test_a_version_is_loaded_and_unloaded_again_under_traffic_without_a_failed_request(served, make_repository):
    second = make_repository(version=2)

    before = served.control.config("llm")

    def load_and_unload() -> int:
        number = served.versions.add(second, digest="2" * 64)
        time.sleep(0.5)
        served.versions.restore(number, before, (1,))
        return number

    answers, number = asyncio.run(traffic(served.endpoint, load_and_unload))
    assert [answer.error for answer in answers if not answer.ok] == []
    assert {answer.served_version for answer in answers} == {1, 2}
    assert (answers[0].served_version, answers[-1].served_version, number) == (1, 1, 2)
    assert served.versions.ready() == (1,)
    assert served.kept() == ["1", "config.pbtxt"]


def test_a_version_that_does_not_load_leaves_the_others_serving_and_nothing_of_itself(served, make_repository):
    others, kept, free = served.versions.ready(), served.kept(), served.versions.free_number()
    before = served.control.config("llm")
    with pytest.raises(ModelRefused, match="built for another GPU"):
        served.versions.add(make_repository(broken="built for another GPU"), digest="3" * 64)
    assert served.versions.ready() == others
    assert served.answers(f"/versions/{others[0]}").ok
    assert served.kept() == kept
    assert served.control.config("llm") == before
    assert served.versions.free_number() == free + 1, "a number is never used twice"


@pytest.mark.parametrize("served", ["grpc"], indirect=True)
def test_the_endpoint_tells_the_digest_of_the_version_that_answers(served, make_repository):
    before = served.control.config("llm")["parameters"].get(DIGEST_PARAMETER, {}).get("string_value", "1" * 64)
    require_served(served.endpoint, before)
    served.versions.add(make_repository(), digest="3" * 64)
    require_served(served.endpoint, "3" * 64)
    with pytest.raises(IntegrityError, match="llm_pipeline:3333"):
        require_served(served.endpoint, before)


@pytest.mark.parametrize("served", ["http"], indirect=True)
def test_a_model_whose_process_died_is_ready_all_the_same_and_a_new_version_answers(served, make_repository):
    for stub in served.stubs():
        os.kill(stub.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while served.answers().ok and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "not healthy" in served.answers().error
    assert served.control.is_ready("llm", max(served.versions.ready())), "so readiness proves nothing"
    served.versions.add(make_repository(version=9), digest="4" * 64)
    assert served.answers().served_version == 9


def test_what_is_not_there_is_told(served, make_repository, tmp_path):
    assert served.control.config("nobody") is None
    assert served.control.versions("nobody") == ()
    with pytest.raises(ModelRefused, match="nobody"):
        served.control.load("nobody")
    served.control.unload("nobody")
    several = make_repository("several")
    (several / "other").mkdir()
    (several / "other" / "config.pbtxt").write_text('name: "other"\n')
    with pytest.raises(Unsupported, match="llm, other"):
        served.versions.add(several, digest="2" * 64)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_is_away_may_be_asked_again(protocol):
    control = open_model_control(Endpoint(url="http://127.0.0.1:9", grpc="127.0.0.1:9"), protocol, timeout_seconds=5)
    with pytest.raises(Transient, match="no server answers"):
        control.versions("llm")
    control.close()


def test_configurations_differ_by_what_a_model_does_and_by_nothing_else(make_repository):
    config = candidate_config(make_repository(), "1" * 64)
    same = candidate_config(make_repository("again"), "2" * 64) | {"version_policy": {"latest": {"num_versions": 1}}}
    assert differing_fields(config, same) == ()
    assert differing_fields(config, same | {"max_batch_size": 8}) == ("max_batch_size",)
    changed = same | {"parameters": {"maximum_tokens_per_request": {"string_value": "1"}}}
    assert differing_fields(config, changed) == ("parameters",)
