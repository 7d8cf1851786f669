"""A stage that takes longer than its request allows is stopped, whatever it hangs in, unless it makes progress."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from resolved_release import request_below

from llm_pipeline.release.contract import OUTCOME, StageFailure, StageResult, TimeLimit
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.time_limit import time_limit
from llm_pipeline.store import open_store

DEMO = load_release(Path(__file__).parents[2] / "configs" / "releases" / "demo.yaml").release
HOUR = 3600.0

STAGE = Path(__file__).parents[1] / "runners" / "stages_for_tests" / "run_stage.py"
HANGS = {"asleep": {"seconds": 600}, "deaf": {"hang": True, "seconds": 600}, "stalls": {"progress": 1, "seconds": 600}}
LIMIT = TimeLimit(seconds=1.0, longest_seconds=60.0, setting="time_limit of p")


def run_stage(tmp_path: Path, limit: TimeLimit, **script: Any):
    """A stage's real process; how it ended, and its outcome."""
    request = request_below(tmp_path, "choose", script, time_limit=limit)
    (tmp_path / "request.json").write_text(request.model_dump_json())
    result = tmp_path / "result.json"
    command = [sys.executable, str(STAGE), "choose", "--request", str(tmp_path / "request.json")]
    environment = {**os.environ, "TEST_GRACE_SECONDS": "0.3", "TEST_REUSABLE": "1"}
    ended = subprocess.run(
        [*command, "--result", str(result)], env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert result.exists(), ended.stderr
    return ended, OUTCOME.validate_json(result.read_bytes()), open_store(request.store)


@pytest.mark.parametrize("how", HANGS)
def test_a_stage_that_hangs_is_stopped_and_its_lease_is_free_again(tmp_path: Path, how: str) -> None:
    heart = tmp_path / "heart"
    ended, outcome, store = run_stage(tmp_path, LIMIT, heartbeat=str(heart) if how == "deaf" else "", **HANGS[how])
    assert ended.returncode == 5, ended.stderr
    assert isinstance(outcome, StageFailure)
    assert (outcome.error.type, outcome.error.family) == ("StageOutOfTime", "transient")
    assert "raise time_limit of p" in outcome.error.hint
    assert "time limit of 1.0 s without any progress" in outcome.error.message
    if how == "deaf":
        beats = heart.stat().st_size
        time.sleep(0.2)
        assert heart.stat().st_size == beats, "its child runs on"
    else:
        leases = [store.read_document(name) for name in store.list_documents("stages")]
        assert leases
        assert all(lease.value["expires_at"] <= time.time() for lease in leases if lease), "nobody waits for its lease"


@pytest.mark.slow
def test_a_stage_that_gets_on_may_take_longer_and_says_so_in_its_log(tmp_path: Path) -> None:
    ended, outcome, _ = run_stage(tmp_path, LIMIT.model_copy(update={"seconds": 10.0}), progress=120)
    assert isinstance(outcome, StageResult), outcome
    assert "goes on for it makes progress" in ended.stderr


def test_no_stage_gets_on_for_ever(tmp_path: Path) -> None:
    limit = LIMIT.model_copy(update={"seconds": 60.0, "longest_seconds": 3.0})
    _, outcome, store = run_stage(tmp_path, limit, progress=120)
    assert isinstance(outcome, StageFailure)
    assert "3.0 s, the longest of any stage" in outcome.error.message
    assert store.read_document("releases/r1/failures/choose.json"), "the report knows of it"


def test_what_ran_in_time_is_left_alone_and_the_alarm_is_off_afterwards() -> None:
    from llm_pipeline.release.time_limit import ended_by

    before = signal.getsignal(signal.SIGALRM)
    with ended_by(LIMIT.model_copy(update={"seconds": 0.2}), lambda _: pytest.fail("given up")):
        pass
    assert signal.getsignal(signal.SIGALRM) is before
    time.sleep(0.4)  # an alarm would end this process


def test_a_stage_may_stand_still_for_four_hours_and_take_as_long_as_the_policy_says() -> None:
    limit = time_limit(DEMO, "quantize")
    assert (limit.seconds, limit.longest_seconds) == (4 * HOUR, 24 * HOUR)
    assert limit.setting == f"longest_stage_hours of policy {DEMO.policy.name}"
    short = DEMO.model_copy(update={"policy": DEMO.policy.model_copy(update={"longest_stage_hours": 2.0})})
    assert time_limit(short, "quantize").seconds == 2 * HOUR


def test_a_stage_may_take_as_long_as_its_own_settings_need() -> None:
    waits = {"maximum_bake_seconds": 10 * HOUR, "pause_deadline_seconds": 60 * HOUR}
    policy = DEMO.policy.model_copy(update={"canary": DEMO.policy.canary.model_copy(update=waits)})
    (target,) = DEMO.targets
    target = target.model_copy(update={"build": target.build.model_copy(update={"time_limit_minutes": 6000.0})})
    workload = DEMO.workload.model_copy(update={"duration_seconds": 20 * HOUR})
    slow = DEMO.model_copy(update={"policy": policy, "targets": (target,), "workload": workload})
    for stage, hours in (("canary", 70), ("build", 100), ("load_test", 100)):
        limit = time_limit(slow, stage)
        assert min(limit.seconds, limit.longest_seconds) > hours * HOUR
