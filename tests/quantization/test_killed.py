from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("modelopt")

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "configs/calibration/demo.jsonl"
SAVED = (
    "saved, before it is published",
    "while it is published",
    "published, before it is noted",
    "while it is exported",
    "exported, before it is validated",
)


@pytest.fixture(scope="module")
def attempts(source, tmp_path_factory):
    """What came of a killed attempt and the one after it, by the step that the first was killed at."""
    command = [sys.executable, HERE / "killed_stage.py", tmp_path_factory.mktemp("killed"), source, DATA]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, check=True, timeout=300)
    return json.loads(done.stdout)


@pytest.mark.parametrize("step", SAVED)
def test_a_calibration_that_was_saved_is_never_made_again(attempts, step):
    assert attempts[step]["killed"] == -signal.SIGKILL
    assert attempts[step]["outcome"] == "result", attempts[step]["error"]
    assert attempts[step]["calibration"] == "restored"
    assert attempts[step]["passes"] == 1


def test_killed_before_it_is_saved_it_is_made_once_more(attempts):
    before = attempts["calibrated, before it is saved"]
    assert (before["killed"], before["outcome"]) == (-signal.SIGKILL, "result")
    assert (before["calibration"], before["passes"]) == ("computed", 2)


def test_wherever_it_was_killed_the_checkpoint_is_the_same(attempts):
    assert len({attempt["checkpoint"]["digest"] for attempt in attempts.values()}) == 1
