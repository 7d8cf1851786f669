"""A staging server in a real container: read-only, without capabilities or network of the host, ports on loopback."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("docker")

from llm_pipeline.adapters.docker.adapter import DockerServer
from llm_pipeline.serving.control import Candidate, ServerControl, await_no_requests, open_control
from llm_pipeline.serving.triton_server import ServerFailed

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from container_engine import real_engine
from server_image import make_server_image

pytestmark = pytest.mark.thorough

HOME, PYTHON = ROOT / ".envs" / "triton", ROOT / ".envs" / "model" / "bin" / "python"


@pytest.fixture(scope="module")
def engine(module_tritonserver, tmp_path_factory):
    """A real engine with the image of a server in it, and its address."""
    archive, runtime = tmp_path_factory.mktemp("image") / "image.tar", module_tritonserver.parent / "runtime"
    with real_engine() as (client, address):
        image = make_server_image(
            client, archive, home=HOME, python=PYTHON, base=Path(sys.base_prefix), runtime=runtime
        )
        client.containers.run(image, ["/bin/bash", "-c", "true"], network_mode="bridge", remove=True)
        yield client, address, image


@pytest.fixture
def control(engine, ports, staging_slot, monkeypatch) -> Iterator[ServerControl]:
    _, address, image = engine
    monkeypatch.setenv("DOCKER_HOST", address)
    control = open_control(DockerServer(kind="docker", image=image, **ports.by_name()), staging_slot)
    yield control
    control.stop()


def answer(server) -> dict:
    asked = json.dumps({"prompt": "a b", "max_tokens": 4, "temperature": 0}).encode()
    with urllib.request.urlopen(f"{server.endpoint.url}/v1/completions", asked, timeout=30) as response:
        return json.loads(response.read())


def test_a_candidate_answers_from_its_container_which_is_found_killed_and_gone(control, engine, make_repository):
    client, _, _ = engine
    assert control.find() is None
    candidate = Candidate(make_repository(version=7), digest="c" * 64)
    server = control.start(candidate, wait_seconds=120)
    assert answer(server)["choices"][0]["text"] == " a b a b"
    assert await_no_requests(server.endpoint, 5)
    (container,) = client.containers.list()
    assert control.start(candidate, wait_seconds=60).digest == candidate.digest
    assert [one.id for one in client.containers.list()] == [container.id], "it runs already"
    for path in ("/opt/x", str(candidate.repository / "x")):
        code, said = container.exec_run(["/bin/bash", "-c", f"echo > {path}"])
        assert (code, b"Read-only file system" in said) == (1, True), said
    _, status = container.exec_run(["/bin/bash", "-c", "while read a b; do echo $a $b; done < /proc/1/status"])
    facts = dict(line.split(" ", 1) for line in status.decode().splitlines() if " " in line)
    assert int(facts["CapEff:"], 16) == 0
    assert facts["NoNewPrivs:"] == "1"
    assert facts["Uid:"].split()[0] == str(os.getuid())

    container.kill()
    container.wait()
    assert control.find() is None
    again = control.start(Candidate(candidate.repository, digest="e" * 64), wait_seconds=120)
    assert answer(again)["choices"][0]["text"] == " a b a b"
    control.stop(drain_seconds=5)
    assert client.containers.list(all=True) == []


def test_a_model_that_does_not_load_shows_why_and_leaves_no_container(control, engine, make_repository):
    with pytest.raises(ServerFailed, match="built for another GPU"):
        control.start(Candidate(make_repository(broken="built for another GPU"), "c" * 64), wait_seconds=120)
    assert engine[0].containers.list(all=True) == []
