"""A stage that takes longer than its request allows is stopped, whatever it hangs in."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_pipeline.release.contract import OUTCOME, StageFailure, StageRequest
from llm_pipeline.store import open_store

SCRIPT = """
import os, subprocess, sys, time, signal
from pathlib import Path
from pydantic import BaseModel
from llm_pipeline.release import execute, process, time_limit
from llm_pipeline.release.contract import Stage, StageOutput

class Nothing(BaseModel): pass

def hang(context):
    if sys.argv[3] == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # like native code that never returns
        child = subprocess.Popen(["sleep", "600"])
        Path(sys.argv[2] + ".child").write_text(str(child.pid))
    time.sleep(600)

time_limit.GRACE_SECONDS = 0.3
stage = Stage(name="choose", version=1, config=Nothing, run=hang, environment="control")
execute.load_stage = lambda name: stage
raise SystemExit(process.run_stage_process("choose", Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("how", ["asleep", "deaf"])
def test_a_stage_that_hangs_is_stopped_and_its_lease_is_free_again(tmp_path: Path, how: str) -> None:
    store = f"file://{tmp_path}/store"
    request = StageRequest(
        release_id="r1",
        stage="choose",
        config={},
        store={"uri": store},
        work_root=str(tmp_path / "work"),
        time_limit_seconds=1.0,
    )
    (tmp_path / "request.json").write_text(request.model_dump_json())
    result = tmp_path / "result.json"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "request.json"), str(result), how]
    started = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert time.monotonic() - started < 30
    assert ended.returncode == 5, ended.stderr
    outcome = OUTCOME.validate_json(result.read_bytes())
    assert isinstance(outcome, StageFailure)
    assert (outcome.error.type, outcome.error.family) == ("StageOutOfTime", "transient")
    assert "time_limit_hours" in outcome.error.hint
    if how == "deaf":
        child = Path(f"{result}.child").read_text()
        assert not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes()
    else:
        leases = [open_store(store).read_document(name) for name in open_store(store).list_documents("stages")]
        assert all(lease.value["expires_at"] <= time.time() for lease in leases if lease), "nobody waits for its lease"


def test_what_ran_in_time_is_left_alone_and_the_alarm_is_off_afterwards() -> None:
    from llm_pipeline.release.time_limit import ended_after

    with ended_after(0.05, lambda: pytest.fail("given up")):
        pass
    time.sleep(0.1)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
