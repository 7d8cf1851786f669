"""A stage that takes longer than its request allows is stopped, whatever it hangs in, unless it makes progress."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_pipeline.release.contract import OUTCOME, StageFailure, StageRequest, StageResult, TimeLimit
from llm_pipeline.store import open_store

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


LIMIT = TimeLimit(seconds=1.0, stall_seconds=1.0, longest_seconds=60.0, basis="4 x 0.25 s", setting="time_limit of p")


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
    limit = LIMIT.model_copy(update={"seconds": 60.0}) if how == "stalls" else LIMIT
    ended, outcome, store = run_stage(tmp_path, how, limit)
    assert ended.returncode == 5, ended.stderr
    assert isinstance(outcome, StageFailure)
    assert (outcome.error.type, outcome.error.family) == ("StageOutOfTime", "transient")
    assert "raise time_limit of p" in outcome.error.hint
    said = "without any progress" if how == "stalls" else "time limit of 1.0 s (4 x 0.25 s)"
    assert said in outcome.error.message
    if how == "deaf":
        child = (tmp_path / "result.json.child").read_text()
        assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()
    else:
        leases = [store.read_document(name) for name in store.list_documents("stages")]
        assert all(lease.value["expires_at"] <= time.time() for lease in leases if lease), "nobody waits for its lease"


@pytest.mark.slow
def test_a_stage_that_gets_on_may_take_longer_and_says_so_in_its_log(tmp_path: Path) -> None:
    patient = LIMIT.model_copy(update={"seconds": 10.0, "stall_seconds": 10.0})
    ended, outcome, _ = run_stage(tmp_path, "slow", patient)
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
