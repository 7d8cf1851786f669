"""An access log that goes astray in the middle of a step, with Envoy writing it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from llm_pipeline.base import detached
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.open_router import access_log_of
from llm_pipeline.canary.record import Phase

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere.jsonl"))


def rename_and_create(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.1"))
    path.touch()


ASTRAY = [rename, rename_and_create, Path.unlink]


@pytest.mark.parametrize("astray", ASTRAY)
def test_a_candidate_that_fails_once_the_log_is_gone_is_rolled_back_and_no_user_notices(trial, astray) -> None:
    trial.policy |= {"steps_percent": (25.0, 100.0), "minimum_bake_seconds": 8.0, "maximum_bake_seconds": 40.0}
    trial.access_log = access_log_of(trial.site.router)
    running = trial.start(25)
    trial.await_phase(Phase.BAKING, 25)
    time.sleep(2.0)
    astray(trial.site.router.files.access_log)
    trial.site.control.fault(trial.candidate, failure_fraction=1.0)
    judgement = running.result(timeout=60)
    assert judgement.verdict is Verdict.NO_GO, judgement.summary
    trial.assert_rolled_back()
    assert trial.lost == {}


@pytest.mark.parametrize("astray", ASTRAY)
def test_a_good_candidate_passes_however_often_its_log_is_moved(trial, astray) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 6.0, "maximum_bake_seconds": 40.0}
    trial.access_log = access_log_of(trial.site.router)
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    for _ in range(2):
        time.sleep(1.5)
        astray(trial.site.router.files.access_log)
    assert running.result(timeout=60).verdict is Verdict.GO
    assert trial.lost == {}


def test_a_step_does_not_pass_on_what_was_seen_before_envoy_died(trial, monkeypatch) -> None:
    monkeypatch.setattr(trial.router, "revive", lambda: None)
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 4.0, "maximum_bake_seconds": 9.0}
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    time.sleep(1.5)
    process = detached.load(trial.site.router.files.record)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    try:
        assert running.result(timeout=60).verdict is not Verdict.GO
    finally:
        trial.site.start_router()
