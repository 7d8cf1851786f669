"""An Envoy that is killed or frozen while a release is on trial; real Envoy, users of all kinds."""

from __future__ import annotations

import os
import signal
import time

import pytest

from llm_pipeline.base import detached
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def end_router(site, number: signal.Signals) -> detached.DetachedProcess:
    process = detached.load(site.router.files.record)
    assert process is not None
    os.kill(process.pid, number)
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_an_envoy_that_ends_at_the_last_step_is_back_before_the_step_passes(trial, number) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 6.0, "maximum_bake_seconds": 60.0}
    trial.reach(50)
    running = trial.start(100)
    trial.await_phase(Phase.BAKING, 100)
    weights = trial.site.weights()
    assert weights == {trial.candidate: 9_800, trial.stable: 200}
    time.sleep(1.0)
    ended = end_router(trial.site, number)
    judgement = running.result(timeout=90)
    assert judgement.verdict is Verdict.GO, judgement.summary
    assert trial.events.count("router revived") == 1
    again = detached.load(trial.site.router.files.record)
    assert again is not None
    assert again.alive
    assert again.pid != ended.pid
    assert trial.site.weights() == weights
    trial.site.await_answers(50)


def test_stable_answers_what_the_candidate_fails_at_the_last_step(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 6.0, "maximum_bake_seconds": 60.0}
    trial.reach(50)
    running = trial.start(100)
    trial.await_phase(Phase.BAKING, 100)
    trial.site.control.fault(trial.candidate, failure_fraction=1.0)
    assert running.result(timeout=60).verdict is Verdict.NO_GO
    trial.assert_rolled_back()
    assert trial.lost_unary == {}, trial.site.traffic()["reasons"]
