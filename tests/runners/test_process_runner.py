"""The process runner with a real stage of the package (`choose`, the lightest) in real processes."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.environment import Interpreter
from llm_pipeline.errors import ConfigError, RemoteStageError, StageCrashed
from llm_pipeline.runners import detached
from llm_pipeline.runners.process import ProcessRunner, stage_environment
from llm_pipeline.runners.runner import Job, Placement
from llm_pipeline.stages.contract import StageRequest
from llm_pipeline.verdict import Verdict

_SLEEPER = "#!/bin/sh\nexec sleep 60\n"

HERE = Placement(environment="control")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(
        name="test",
        store=f"file://{tmp_path / 'store'}",
        work_root=str(tmp_path / "work"),
        state_root=str(tmp_path / "state"),
        environments={"control": sys.executable},
        triton_home=str(tmp_path),
    )


@pytest.fixture
def frozen_deployment(deployment: Deployment, tmp_path: Path) -> Deployment:
    """Its interpreter hangs, so that a stage can be caught while it runs."""
    sleeper = tmp_path / "sleeper"
    sleeper.write_text(_SLEEPER)
    sleeper.chmod(0o755)
    return deployment.model_copy(update={"environments": {"control": Interpreter(python=str(sleeper))}})


def choose(deployment: Deployment, verdict: str = "GO") -> StageRequest:
    attempt = {"recipe": "fp8", "verdict": verdict, "bytes": 10, "summary": "tested"}
    return StageRequest(
        release_id="r1",
        stage="choose",
        config={"attempts": [attempt]},
        store=deployment.store,
        work_root=deployment.work_root,
    )


def wait(runner: ProcessRunner, job: Job, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while runner.is_active(job):
        assert time.monotonic() < deadline, "the stage did not end"
        time.sleep(0.05)


def test_a_stage_runs_in_a_process_of_its_own_and_returns_its_result(deployment: Deployment) -> None:
    runner = ProcessRunner(deployment)
    job = runner.submit(choose(deployment), HERE)
    wait(runner, job)
    result = runner.outcome(job)
    assert result.judgement is not None
    assert result.judgement.verdict is Verdict.GO
    assert result.metrics["recipe"] == "fp8"
    lines, offset = runner.read_log(job, 0)
    assert any("choose starts" in line for line in lines)
    assert runner.read_log(job, offset) == ([], offset)


def test_the_same_request_gives_the_running_job(frozen_deployment: Deployment) -> None:
    runner = ProcessRunner(frozen_deployment)
    first = runner.submit(choose(frozen_deployment), HERE)
    try:
        assert ProcessRunner(frozen_deployment).submit(choose(frozen_deployment), HERE) == first
    finally:
        runner.cancel(first)


def test_another_request_of_the_same_stage_supersedes_the_running_one(frozen_deployment: Deployment) -> None:
    runner = ProcessRunner(frozen_deployment)
    first = runner.submit(choose(frozen_deployment), HERE)
    second = runner.submit(choose(frozen_deployment, verdict="NO_GO"), HERE)
    try:
        assert not runner.is_active(first)
        assert runner.is_active(second)
    finally:
        runner.cancel(second)


def test_a_killed_stage_is_a_transient_crash_that_says_where_to_look(frozen_deployment: Deployment) -> None:
    runner = ProcessRunner(frozen_deployment)
    job = runner.submit(choose(frozen_deployment), HERE)
    process = detached.load(job.record)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    wait(runner, job)
    with pytest.raises(StageCrashed, match="killed, or out of memory"):
        runner.outcome(job)


def test_an_error_in_the_stage_keeps_its_family_and_exit_code(deployment: Deployment) -> None:
    runner = ProcessRunner(deployment)
    broken = choose(deployment).model_copy(update={"config": {"atempts": []}})
    job = runner.submit(broken, HERE)
    wait(runner, job)
    with pytest.raises(RemoteStageError, match="ConfigError") as caught:
        runner.outcome(job)
    assert caught.value.exit_code == ConfigError.exit_code


def test_a_missing_interpreter_is_one_clear_error(deployment: Deployment) -> None:
    nowhere = deployment.model_copy(update={"environments": {"control": Interpreter(python="/no/such/python")}})
    with pytest.raises(ConfigError, match="make environments"):
        ProcessRunner(nowhere).submit(choose(nowhere), HERE)


def test_airflow_settings_and_connections_do_not_reach_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://user:secret@host/db")
    monkeypatch.setenv("AIRFLOW_CONN_HUB", "secret")
    monkeypatch.setenv("HF_TOKEN", "needed")
    environment = stage_environment()
    assert not [name for name in environment if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))]
    assert environment["HF_TOKEN"] == "needed"
