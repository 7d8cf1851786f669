"""A staging server in its container: the engine is a double, the server in it is the real one."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("docker")

from llm_pipeline.adapters.docker.adapter import SERVER, DockerServer
from llm_pipeline.adapters.docker.server import DockerControl
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.serving.control import (
    Candidate,
    ServerControl,
    StagingSlot,
    await_no_requests,
    endpoint_of,
    open_control,
)
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy

IMAGE, DIGEST = "registry.test/tritonserver:1", "sha256:" + "0" * 64


@pytest.fixture
def engine(tmp_path: Path, tritonserver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from docker_engine import DockerEngine

    double = DockerEngine(tmp_path)
    double.images[IMAGE] = DIGEST
    double.programs["/opt/tritonserver/bin/tritonserver"] = str(tritonserver)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{double.socket}")
    yield double
    double.close()


@pytest.fixture
def place(ports) -> DockerServer:
    return DockerServer(kind="docker", image=IMAGE, **ports.by_name())


@pytest.fixture
def control(engine, place, staging_slot) -> Iterator[ServerControl]:
    control = open_control(place, staging_slot)
    yield control
    control.stop()


@pytest.mark.slow
def test_a_candidate_is_served_from_its_container_found_by_anybody_and_gone_after_the_stop(
    control, engine, place, staging_slot, make_repository
):
    assert control.find() is None
    candidate = Candidate(make_repository(), digest="c" * 64)
    server = control.start(candidate, wait_seconds=60)
    assert server.endpoint == endpoint_of(place, release_name="demo", target_name="cpu")
    assert await_no_requests(server.endpoint, 5)
    assert SERVER.probe(place).endswith(f", image {IMAGE}")
    container = engine.container(control.name)
    assert container.options["Image"] == f"registry.test/tritonserver@{DIGEST}", "what runs is the digest"
    assert container.options["HostConfig"]["ReadonlyRootfs"]
    assert container.options["HostConfig"]["CapDrop"] == ["ALL"]
    modes = {mount["Source"]: mount.get("ReadOnly", False) for mount in container.options["HostConfig"]["Mounts"]}
    assert modes == {str(staging_slot.state / "repository"): False, str(candidate.repository): True}

    somebody_else = open_control(place, staging_slot)
    assert somebody_else.find() == server.__class__(server.endpoint, server.digest)
    assert control.start(candidate, wait_seconds=60).digest == candidate.digest, "it runs already"
    with pytest.raises(SlotBusy, match="cccccccccccc"):
        control.start(Candidate(candidate.repository, digest="e" * 64), wait_seconds=60)

    container.signal(signal.SIGKILL)  # it ends, and nobody removes it
    container.process.wait()
    assert control.find() is None
    assert control.start(Candidate(candidate.repository, digest="e" * 64), wait_seconds=60).digest == "e" * 64
    last = engine.container(control.name)
    assert last is not container
    somebody_else.stop(drain_seconds=5)
    assert engine.names() == []
    assert last.process.poll() is not None


@pytest.mark.slow
def test_a_model_that_does_not_load_shows_why_and_leaves_no_container(control, engine, make_repository):
    with pytest.raises(ServerFailed, match="built for another GPU"):
        control.start(Candidate(make_repository(broken="built for another GPU"), "c" * 64), wait_seconds=60)
    assert engine.names() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"image": None}, "no image to serve with"),
        ({"image": "registry.test/no/such:1"}, "cannot be pulled"),
        ({"variables": ("LLM_PIPELINE_NOT_SET",)}, "LLM_PIPELINE_NOT_SET"),
    ],
)
def test_a_wrong_place_is_refused_and_leaves_nothing(engine, place, staging_slot, make_repository, *, changes, problem):
    control = open_control(place.model_copy(update=changes), staging_slot)
    with pytest.raises(ConfigError, match=problem):
        control.start(Candidate(make_repository(), "c" * 64), wait_seconds=5)
    assert engine.names() == []


def test_gpus_are_asked_for_by_the_numbers_of_the_place(place, staging_slot):
    h100 = staging_slot.target.model_copy(update={"accelerator": "H100-SXM5-80GB"})
    slot = StagingSlot(staging_slot.state, "demo", h100)
    candidate = Candidate(staging_slot.state, "c" * 64)

    def asked(control: DockerControl) -> list[Any]:
        found: list[Any] = control._options("image", control._plan(candidate), candidate)["device_requests"]
        return found

    (some,) = asked(DockerControl(place.model_copy(update={"gpus": (2, 3)}), slot))
    assert some["DeviceIDs"] == ["2", "3"]
    (everything,) = asked(DockerControl(place, slot))
    assert everything["Count"] == -1
    assert asked(DockerControl(place, staging_slot)) == []


def test_an_engine_that_is_away_may_be_asked_again(place, staging_slot, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(Transient, match="Docker engine does not answer"):
        open_control(place, staging_slot).find()
