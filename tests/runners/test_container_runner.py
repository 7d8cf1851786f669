"""Stages in real containers: what they may do, and what can be wrong with them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from container_engine import ENGINE
from resolved_release import request_below
from waiting import until

from llm_pipeline.adapters.local.adapter import ContainerEnvironment
from llm_pipeline.adapters.local.container import _options, asked, engine_and_image, repository_of
from llm_pipeline.base.errors import ConfigError, StageCrashed, Transient
from llm_pipeline.runners.runner import Placement

HERE = Placement(environment="control")


@pytest.fixture
def place(container_place):
    return container_place


@pytest.fixture
def printed(place, engine):
    """What a script prints in a container with these settings, as one whose stage never began shows it."""

    def printed(script: str, **environment) -> str:
        runner = place.scripted(f"{script}; exit 1", **environment)
        job = runner.submit(place.request(), HERE)
        place.ended(runner, job)
        with pytest.raises(StageCrashed, match="exit code 1; its last lines"):
            runner.outcome(job)
        return engine.ask("logs", job.name)

    return printed


def test_a_container_runs_by_digest_without_privilege_and_may_write_only_where_it_works(printed, place, engine):
    paths = f"/etc/x /usr/x /tmp/x {place.deployment.work_root}/x {place.deployment.store.directory}/x"
    script = "grep -E 'CapBnd|NoNewPrivs' /proc/self/status; stat -fc '%b %S' /dev/shm; echo $LLM_PIPELINE_CONTAINER; "
    script += f"for path in {paths}; do touch $path 2> /dev/null && echo $path; done"
    script += "; printf '#!/bin/sh\\necho ran' > /tmp/program; chmod +x /tmp/program; /tmp/program"
    said = printed(script, shared_memory_gib=0.5).splitlines()
    assert [line.split()[1] for line in said[:2]] == ["0" * 16, "1"]
    assert said[2] == f"{2**29 // 4096} 4096"
    assert said[3] == f"{repository_of(engine.image)}@{engine.digest}"
    assert said[4:] == [*paths.split()[2:], "ran"]


def test_an_image_that_the_engine_does_not_have_is_pulled(printed, engine):
    engine.ask("rmi", "--force", engine.image)
    assert printed("echo hello") == "hello\n"


def test_the_target_s_own_container_is_used_where_the_environment_names_none(place, engine):
    runner = place.scripted("sleep 60", image=None)
    with pytest.raises(ConfigError, match="names no image"):
        runner.submit(place.request(), HERE)
    placement = Placement(environment="control", container=engine.image)
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
        ({"image": "{registry}/no/such:1"}, "no/such:1 failed: .*manifest unknown"),
        ({"gpus": "all"}, r"unresolvable CDI devices nvidia\.com/gpu=all|could not select device driver"),
        ({"network": "intranet"}, "intranet.*not found"),
        ({"variables": ("NOT_SET_ANYWHERE",)}, "NOT_SET_ANYWHERE"),
    ],
)
def test_what_the_engine_cannot_start_is_a_terminal_error_and_leaves_no_container(place, engine, wrong, says):
    registry = engine.image.partition("/")[0]
    wrong = {key: value.format(registry=registry) if key == "image" else value for key, value in wrong.items()}
    with pytest.raises(ConfigError, match=says):
        place.scripted("", **wrong).submit(place.request(), HERE)
    assert engine.names("--all") == []


def test_a_registry_that_does_not_answer_may_answer_later(place):
    with pytest.raises(Transient, match="connection refused"):
        place.scripted("", image="127.0.0.1:1/llm/model:1").submit(place.request(), HERE)


def test_a_variable_is_handed_on_by_its_name_and_its_value_is_in_no_log_or_command(
    place, engine, monkeypatch, caplog, tmp_path
):
    program = tmp_path / ENGINE
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\nexec {engine.program} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PROXY_TOKEN", "a secret")
    caplog.set_level("DEBUG", "llm_pipeline")
    runner = place.scripted("echo $PROXY_TOKEN; sleep 60", variables=("PROXY_TOKEN",))
    job = runner.submit(place.request(), HERE)
    until(lambda: engine.ask("logs", job.name) == "a secret\n")
    assert "--env=PROXY_TOKEN " in (tmp_path / "commands").read_text()
    assert "a container runs the stage" in caplog.text
    assert "a secret" not in caplog.text + (tmp_path / "commands").read_text()


def test_a_container_that_ran_out_of_memory_says_so_and_leaves_no_file_where_it_was_started(
    place, tmp_path, monkeypatch
):
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    runner = place.scripted(f"exec {sys.executable} -c 'b\"1\" * 2**28'", memory_gib=0.0625)
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    with pytest.raises(StageCrashed, match=r"out of host memory \(memory_gib: 0\.0625\)"):
        runner.outcome(job)
    assert list(here.iterdir()) == []


def test_a_container_goes_when_its_outcome_was_read_and_a_crashed_one_when_its_stage_starts_again(place, engine):
    runner = place.runner()
    crashed = runner.submit(place.request(seconds=60), HERE)
    place.kill(crashed)
    with pytest.raises(StageCrashed, match="exit code 137"):
        runner.outcome(crashed)
    assert engine.names("--all") == [crashed.name]
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    assert engine.names("--all") == [job.name]
    runner.outcome(job)
    assert engine.names("--all") == []


def test_a_container_whose_submitter_was_killed_before_its_start_is_replaced(place, engine, tmp_path):
    run = 'for word in "${@:2}"; do [ "$word" = --detach ] || words+=("$word"); done; "$real" create "${words[@]}"'
    (program := tmp_path / ENGINE).write_text(
        f'#!/bin/bash\nreal={engine.program}\ncase "$1" in run) {run}; kill -9 $PPID ;; *) exec "$real" "$@" ;; esac\n'
    )
    program.chmod(0o755)
    request = place.request(seconds=60)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert (
        subprocess.run(place.submitting(request), env={**os.environ, "PATH": path}, check=False).returncode
        == -signal.SIGKILL
    )
    (created,) = engine.names("--all")
    assert engine.names() == []
    job = place.runner().submit(request, HERE)
    assert engine.names() == engine.names("--all") == [job.name] != [created]


def test_doctor_names_the_engine_s_version_and_a_program_that_is_missing(engine, monkeypatch):
    environment = ContainerEnvironment(runner=ENGINE, image="model:1")
    assert re.fullmatch(rf"{ENGINE} \d+\.\S+, image model:1", engine_and_image(environment))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=f"the program {ENGINE} cannot be started: No such file") as caught:
        engine_and_image(environment)
    assert caught.value.hint == "install it here, or choose another runner in the deployment file"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            Transient,
        ),
        (
            "Error response from daemon: toomanyrequests: You have reached your unauthenticated pull rate limit.",
            Transient,
        ),
        ("permission denied while trying to connect to the Docker daemon socket", ConfigError),
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]',
            ConfigError,
        ),
    ],
)
def test_what_docker_says_tells_whether_the_same_may_work_later(said, error, tmp_path, monkeypatch):
    (tmp_path / "said").write_text(f"{said}\n\nRun 'docker run --help' for more information\n")
    (tmp_path / "docker").write_text(f"#!/bin/sh\ncat {tmp_path}/said >&2; exit 125\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(error, match=f"failed: {re.escape(said)} -> "):
        asked("docker", "run")


@pytest.mark.parametrize(
    ("gpus", "chosen", "docker", "podman"),
    [
        (0, (1,), [], []),
        (2, None, ["--gpus=2"], ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1"]),
        ("all", None, ["--gpus=all"], ["--device=nvidia.com/gpu=all"]),
        ("all", (0, 3), ['--gpus="device=0,3"'], ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=3"]),
    ],
)
def test_gpus_are_asked_for_in_each_engine_s_words(gpus, chosen, docker, podman, tmp_path):
    request = request_below(tmp_path, "choose", {}, gpu_indices=chosen)
    for runner, words in (("docker", docker), ("podman", podman)):
        options = _options(ContainerEnvironment(runner=runner, gpus=gpus), request, frozenset())
        assert [option for option in options if option.startswith(("--gpus", "--device"))] == words
