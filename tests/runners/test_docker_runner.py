"""The Docker runner against the double of an engine: what its containers may do, and what can be wrong with them."""

from __future__ import annotations

import pytest
from docker_engine import DIGEST

from llm_pipeline.adapters.docker.engine import repository_of
from llm_pipeline.base.errors import ConfigError, StageCrashed
from llm_pipeline.runners.runner import Placement

HERE = Placement(environment="control")


@pytest.fixture
def place(docker_place):
    return docker_place


def test_a_container_runs_by_digest_without_privilege_and_may_write_only_where_it_works(place, engine, tmp_path):
    job = place.scripted("sleep 60", memory_gib=2.0).submit(place.request(), HERE)
    options = engine.container(job.name).options
    host = options["HostConfig"]
    assert options["Image"] == f"registry.test/llm/model@{DIGEST}"
    assert f"LLM_PIPELINE_CONTAINER=registry.test/llm/model@{DIGEST}" in options["Env"]
    assert "Privileged" not in host
    assert (host["CapDrop"], host["SecurityOpt"], host["ReadonlyRootfs"]) == (["ALL"], ["no-new-privileges"], True)
    assert (host["Memory"], host["ShmSize"], host["Init"]) == (2 * 2**30, 2**30, True)
    writable = [mount["Source"] for mount in host["Mounts"] if not mount["ReadOnly"]]
    assert writable == [str(tmp_path / "work"), str(tmp_path / "store")]
    assert list(host["Tmpfs"]) == ["/tmp"]  # noqa: S108


def test_an_image_that_the_engine_does_not_have_is_pulled(place, engine):
    engine.registry["registry.test:5000/other:2"] = DIGEST
    place.scripted("sleep 60", image="registry.test:5000/other:2").submit(place.request(), HERE)
    assert "registry.test:5000/other:2" in engine.images


def test_the_target_s_own_container_is_used_where_the_environment_names_none(place, engine):
    runner = place.scripted("sleep 60", image=None)
    with pytest.raises(ConfigError, match="names no image"):
        runner.submit(place.request(), HERE)
    placement = Placement(environment="control", container="registry.test/llm/model:1")
    assert runner.is_active(runner.submit(place.request(), placement))


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("model", "model"),
        ("host:5000/llm/model", "host:5000/llm/model"),
        ("host:5000/llm/model:1@sha256:00", "host:5000/llm/model"),
        ("llm/model@sha256:00", "llm/model"),
    ],
)
def test_a_registry_s_port_is_no_tag(image, repository):
    assert repository_of(image) == repository


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"image": "registry.test/no/such:1"}, "manifest unknown"),
        ({"gpus": "all"}, "could not select device driver"),
        ({"network": "intranet"}, "network intranet not found"),
        ({"python": "/no/such/python"}, "no such file or directory"),
        ({"variables": ("NOT_SET_ANYWHERE",)}, "NOT_SET_ANYWHERE"),
    ],
)
def test_what_the_engine_cannot_start_is_a_terminal_error_and_leaves_no_container(place, engine, wrong, says):
    with pytest.raises(ConfigError, match=says):
        place.scripted("", **wrong).submit(place.request(), HERE)
    assert engine.names() == []


def test_a_variable_is_handed_on_by_its_name_and_its_value_is_in_no_log(place, engine, monkeypatch, caplog):
    monkeypatch.setenv("PROXY_TOKEN", "a secret")
    caplog.set_level("DEBUG", "llm_pipeline")
    job = place.scripted("sleep 60", variables=("PROXY_TOKEN",)).submit(place.request(), HERE)
    assert "PROXY_TOKEN=a secret" in engine.container(job.name).options["Env"]
    assert "a container runs the stage" in caplog.text
    assert "a secret" not in caplog.text


def test_a_container_that_ran_out_of_memory_says_so(place, engine):
    runner = place.scripted("sleep 60", memory_gib=2.0)
    job = runner.submit(place.request(), HERE)
    engine.kill_for_memory(job.name)
    with pytest.raises(StageCrashed, match=r"out of host memory .memory_gib: 2."):
        runner.outcome(job)


def test_a_stage_that_never_began_shows_the_engine_s_log(place):
    runner = place.scripted("echo the engine says >&2; exit 1")
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    with pytest.raises(StageCrashed, match=r"(?s)exit code 1.*the engine says"):
        runner.outcome(job)


def test_a_container_goes_when_its_outcome_was_read(place, engine):
    runner = place.runner()
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    assert engine.names() == [job.name]
    runner.outcome(job)
    assert engine.names() == []


def test_a_container_whose_submitter_died_before_its_start_is_replaced(place, engine, monkeypatch):
    import docker

    runner = place.scripted("sleep 60")
    with monkeypatch.context() as dying:
        dying.setattr(docker.models.containers.Container, "start", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runner.submit(place.request(), HERE)
    job = place.runner().submit(place.request(), HERE)
    assert engine.names() == [job.name]
    assert engine.container(job.name).status == "running"
