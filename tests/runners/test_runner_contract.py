"""What every runner promises: in processes of this machine, in real containers, and in pods of a double.

In `make test-thorough` pods are those of a real Kubernetes API server, too.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from waiting import until

from llm_pipeline.base.errors import (
    ConfigError,
    RemoteStageError,
    RemoteStageTransient,
    StageCrashed,
    StageOutOfTime,
    Transient,
)
from llm_pipeline.release import time_limit
from llm_pipeline.release.contract import TimeLimit
from llm_pipeline.runners.runner import Job, Placement, Watch

HERE = Placement(environment="control")
REAL_KUBERNETES = pytest.param("real_kubernetes", marks=pytest.mark.thorough)


@pytest.fixture(params=["process", "container", "kubernetes", REAL_KUBERNETES])
def place(request):
    return request.getfixturevalue(f"{request.param}_place")


def events(lines):
    return [json.loads(line)["event"] for line in lines]


def test_a_stage_that_another_process_started_is_followed_to_its_result(place):
    request = place.request(lines=40, seconds=3)
    submitted = subprocess.run(place.submitting(request), check=True, capture_output=True)
    job = Job.model_validate_json(submitted.stdout)
    runner = place.runner()
    assert runner.submit(request, HERE) == job
    lines: list[str] = []
    watch = Watch(job, lines.append)
    until(lambda: not watch.look(runner), look_seconds=0.02)
    numbered = [event for event in events(lines) if event.startswith("line")]
    assert numbered == [f"line {number}\\u2028end" for number in range(40)]
    assert place.runner().read_log(job, 0)[0] == lines
    assert place.runner().outcome(job).metrics == {"lines": 40}
    assert runner.outcome(job).metrics == {"lines": 40}


def test_another_request_of_the_same_stage_supersedes_the_running_one(place):
    runner = place.runner()
    first = runner.submit(place.request(seconds=60), HERE)
    second = place.runner().submit(place.request(seconds=61), HERE)
    assert not runner.is_active(first)
    assert runner.is_active(second)
    runner.cancel(second)


def test_other_subjects_run_side_by_side_and_each_keeps_its_error_s_family(place):
    runner = place.runner()
    terminal = runner.submit(place.request("one", error="terminal"), HERE)
    transient = runner.submit(place.request("two", error="transient"), HERE)
    place.ended(runner, terminal)
    place.ended(runner, transient)
    with pytest.raises(RemoteStageError, match="asked for a terminal error") as caught:
        runner.outcome(terminal)
    assert caught.value.exit_code == ConfigError.exit_code
    with pytest.raises(RemoteStageTransient, match="asked for a transient error"):
        runner.outcome(transient)


def test_a_killed_stage_is_a_transient_crash_and_starts_again(place):
    runner = place.runner()
    job = runner.submit(place.request(seconds=60), HERE)
    place.kill(job)
    place.ended(runner, job)
    with pytest.raises(StageCrashed, match="without a result"):
        runner.outcome(job)
    again = runner.submit(place.request(seconds=60), HERE)
    assert again != job
    assert runner.is_active(again)
    runner.cancel(again)


def test_cancelling_stops_the_stage_and_what_it_started(place):
    runner = place.runner()
    heart = Path(place.deployment.work_root) / "heart"
    job = runner.submit(place.request(heartbeat=str(heart), seconds=60), HERE)
    until(heart.exists)
    place.runner().cancel(job)
    assert not runner.is_active(job)
    beats = heart.stat().st_size
    time.sleep(0.2)
    assert heart.stat().st_size == beats
    with pytest.raises(Transient):
        runner.outcome(job)
    runner.cancel(job)


def test_where_this_package_is_not_installed_the_configuration_is_wrong_and_no_second_run_mends_it(place):
    runner = place.scripted("echo /usr/bin/python3: No module named llm_pipeline >&2; exit 1")
    job = runner.submit(place.request(), HERE)
    place.ended(runner, job)
    with pytest.raises(ConfigError, match="python3: No module named llm_pipeline") as caught:
        runner.outcome(job)
    assert "under environments: in the deployment file" in caught.value.hint


def test_where_nothing_can_start_there_is_one_clear_error(place):
    runner = place.runner()
    with pytest.raises(ConfigError, match="has no environment 'elsewhere'"):
        runner.submit(place.request(), Placement(environment="elsewhere"))
    with pytest.raises((ConfigError, RemoteStageError, Transient), match=r"no/such"):
        _run_nowhere(runner, place)


def _run_nowhere(runner, place):
    job = runner.submit(place.request(), Placement(environment="nowhere"))
    place.ended(runner, job)
    return runner.outcome(job)


def test_one_that_hangs_silently_and_ignores_signals_is_ended_from_outside_with_all_it_started(
    place, tmp_path, monkeypatch
):
    monkeypatch.setattr(time_limit, "GRACE_SECONDS", 0.1)
    limit = TimeLimit(seconds=3.0, setting="time_limit of policy p")
    heartbeat = tmp_path / "heartbeat"
    request = place.request(lines=1, heartbeat=str(heartbeat), hang=True, seconds=600)
    runner = place.runner()
    job = runner.submit(request, HERE).model_copy(update={"time_limit": limit, "start_seconds": 120.0})
    watch = Watch(job, print)
    with pytest.raises(StageOutOfTime, match=r"time limit of 3\.0 s without any progress") as ended:
        until(lambda: not watch.look(runner), look_seconds=0.1)
    assert "raise time_limit of policy p" in ended.value.hint
    assert heartbeat.exists(), "it was at work before it was stopped"
    assert not runner.is_active(job)
    size = heartbeat.stat().st_size
    time.sleep(1)
    assert heartbeat.stat().st_size == size, "its child runs on"
    again = runner.submit(place.request(lines=1), HERE)
    place.ended(runner, again)
    assert runner.outcome(again).metrics == {"lines": 1}, "nothing is in the way of the next try"
