"""A stage whose process is stopped can say nothing and end nothing: whoever runs the release ends it."""

from __future__ import annotations

import os
import signal

import pytest
from llm_pipeline_airflow.operators import StageOperator
from waiting import until

from llm_pipeline.base import detached
from llm_pipeline.base.errors import PipelineError, StageCrashed, StageOutOfTime
from llm_pipeline.local_run import LocalRun
from llm_pipeline.release import time_limit
from llm_pipeline.release.contract import TimeLimit
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import placement, resolve_request
from llm_pipeline.reporting.collect import read_failures
from llm_pipeline.runners.runner import Runners
from llm_pipeline.store import open_store

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(time_limit, "GRACE_SECONDS", 0.1)


def test_a_run_without_airflow_ends_it_tells_people_and_tries_again(project, monkeypatch, told):
    monkeypatch.setattr(time_limit, "_STANDSTILL", 12.0)
    project.script(download={"hang": True}, baseline={"error": "terminal"})
    with pytest.raises(PipelineError, match="the test asked for a terminal error"):
        LocalRun(project.config, approve=lambda _: True).run()
    (late,) = [message for message in told.messages if "is tried again" in message["title"]]
    assert late["title"] == "Download of tiny-01234567-00000000: failed, and is tried again"
    assert "time limit of 12 s without any progress" in late["message"]
    failures = [title for title in told.titles if title.endswith(": failed")]
    assert failures, "the second try of the download went well, and the next stage was reached"
    assert all(title.startswith("Baseline") for title in failures)


def test_a_stage_that_is_killed_is_in_the_report_until_it_ends_well(project):
    loaded = load_release(project.config)
    store = open_store(loaded.deployment.store)
    project.script(resolve={"hang": True})
    request, runner = resolve_request(loaded), Runners(loaded.deployment)
    job = runner.submit(request, placement(request))
    process = detached.load(job.record)
    assert process is not None
    until(lambda: "working" in job.log.read_text())
    os.killpg(process.pid, signal.SIGKILL)  # as the kernel does where memory runs out
    until(lambda: not runner.is_active(job))
    with pytest.raises(StageCrashed):
        runner.outcome(job)
    (found,) = read_failures(store, request.release_id, [])
    assert (found.stage, found.error.type) == ("resolve", "StageCrashed")
    project.script(resolve={})
    again = runner.submit(request, placement(request))
    until(lambda: not runner.is_active(again))
    assert runner.outcome(again).stage == "resolve"
    assert read_failures(store, request.release_id, []) == ()


def test_a_task_of_airflow_ends_it_and_the_retry_policy_sees_a_transient_error(project):
    loaded = load_release(project.config)
    project.script(resolve={"hang": True})
    request, runner = resolve_request(loaded), Runners(loaded.deployment)
    job = runner.submit(request, placement(request)).model_copy(update={"time_limit": TimeLimit(seconds=3.0)})
    task = StageOperator(task_id="resolve", config_path=str(project.config), stage="resolve")
    with pytest.raises(StageOutOfTime):
        task.poll_until_complete(job.model_dump(mode="json"), {})
    assert not runner.is_active(job)
    assert task.get_job_status(job.model_dump(mode="json"), {}) == "lost", "so that the retry starts it anew"
