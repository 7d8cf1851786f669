"""A stage that takes longer than its request allows is stopped, whatever it hangs in, unless it makes progress."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_pipeline.release.contract import OUTCOME, StageFailure, StageRequest, StageResult, TimeLimit
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.time_limit import time_limit
from llm_pipeline.store import open_store

DEMO = load_release(Path(__file__).parents[2] / "configs" / "releases" / "demo.yaml").release
HOUR = 3600.0

SCRIPT = """
import os, subprocess, sys, time, signal
from pathlib import Path
from pydantic import BaseModel
from llm_pipeline.base.progress import made_progress
from llm_pipeline.release import execute, process, time_limit
from llm_pipeline.release.contract import Stage, StageOutput

class Nothing(BaseModel): pass

def hang(context):
    if sys.argv[3] == "slow":
        for _ in range(120):
            made_progress()
            time.sleep(0.1)
        return StageOutput()
    if sys.argv[3] == "stalls":
        made_progress()
    if sys.argv[3] == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # like native code that never returns
        child = subprocess.Popen(["sleep", "600"])
        Path(sys.argv[2] + ".child").write_text(str(child.pid))
    time.sleep(600)

time_limit.GRACE_SECONDS = 0.3
stage = Stage(name="choose", version=1, config=Nothing, run=hang)
execute.load_stage = lambda name: stage
raise SystemExit(process.run_stage_process("choose", Path(sys.argv[1]), sys.argv[2]))
"""


LIMIT = TimeLimit(seconds=1.0, longest_seconds=60.0, setting="time_limit of p")


def run_stage(tmp_path: Path, how: str, limit: TimeLimit):
    """A stage's real process; how it ended, and its outcome."""
    store = f"file://{tmp_path}/store"
    request = StageRequest(
        release_id="r1",
        stage="choose",
        config={},
        store={"uri": store},
        work_root=str(tmp_path / "work"),
        time_limit=limit,
    )
    (tmp_path / "request.json").write_text(request.model_dump_json())
    result = tmp_path / "result.json"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "request.json"), str(result), how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert result.exists(), ended.stderr
    return ended, OUTCOME.validate_json(result.read_bytes()), open_store(store)


@pytest.mark.parametrize("how", ["asleep", "deaf", "stalls"])
def test_a_stage_that_hangs_is_stopped_and_its_lease_is_free_again(tmp_path: Path, how: str) -> None:
    ended, outcome, store = run_stage(tmp_path, how, LIMIT)
    assert ended.returncode == 5, ended.stderr
    assert isinstance(outcome, StageFailure)
    assert (outcome.error.type, outcome.error.family) == ("StageOutOfTime", "transient")
    assert "raise time_limit of p" in outcome.error.hint
    assert "time limit of 1.0 s without any progress" in outcome.error.message
    if how == "deaf":
        child = (tmp_path / "result.json.child").read_text()
        assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()
    else:
        leases = [store.read_document(name) for name in store.list_documents("stages")]
        assert all(lease.value["expires_at"] <= time.time() for lease in leases if lease), "nobody waits for its lease"


@pytest.mark.slow
def test_a_stage_that_gets_on_may_take_longer_and_says_so_in_its_log(tmp_path: Path) -> None:
    ended, outcome, _ = run_stage(tmp_path, "slow", LIMIT.model_copy(update={"seconds": 10.0}))
    assert isinstance(outcome, StageResult), outcome
    assert "goes on for it makes progress" in ended.stderr


def test_no_stage_gets_on_for_ever(tmp_path: Path) -> None:
    _, outcome, store = run_stage(tmp_path, "slow", LIMIT.model_copy(update={"seconds": 60.0, "longest_seconds": 3.0}))
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
