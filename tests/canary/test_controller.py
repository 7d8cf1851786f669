"""Canaries over a real Envoy and real servers, under users of all kinds who count what they lose."""

from __future__ import annotations

import os
import signal

import pytest
from waiting import until

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("percent", "number"),
    [(50, signal.SIGKILL), pytest.param(25, signal.SIGSTOP, marks=pytest.mark.thorough)],
    ids=["killed", "hangs without a reset"],
)
def test_a_candidate_that_ends_is_rolled_back_and_loses_no_unary_request_of_either_kind(trial, percent, number) -> None:
    trial.policy |= {"steps_percent": (percent, 100.0), "minimum_bake_seconds": 10.0}
    running = trial.start(percent)
    trial.await_phase(Phase.BAKING, percent)
    os.kill(trial.site.control.pid(trial.candidate), number)
    assert running.result(timeout=80).verdict is Verdict.NO_GO
    trial.assert_rolled_back()
    assert trial.lost_unary == {}, trial.site.traffic()["reasons"]
    if number == signal.SIGKILL:
        assert sum(trial.lost.values()) <= 5, "only streams in flight at that moment can be cut"


def test_a_rollback_needs_no_admin_interface(trial) -> None:
    trial.policy |= {"steps_percent": (20.0, 100.0)}
    trial.reach(20)
    site = trial.site
    deaf = type(site.router)(site.router.files, site.place.model_copy(update={"admin_port": 18569}), site.slots)
    record = trial.roll_back(router=deaf)
    assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, False)
    assert site.weights() == {trial.stable: 10_000}
    assert trial.lost == {}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"failure_fraction": 1.0}, "fails request after request"),
        ({"hang_fraction": 1.0}, ""),
        ({"stall_fraction": 1.0}, ""),
        ({"delay_milliseconds": 20.0}, "slow"),
        ({"truncated_fraction": 1.0}, "empty or cut answers"),
    ],
    ids=["fails", "hangs", "stalls", "slow", "truncated"],
)
def test_a_candidate_that_becomes_worse_at_50_percent_is_rolled_back_for_what_it_is(trial, fault, named) -> None:
    judgement = trial.fault_at_50_percent(**fault)
    assert (judgement.verdict, named in judgement.summary) == (Verdict.NO_GO, True), judgement
    trial.assert_rolled_back()
    assert trial.lost_unary == {}, trial.site.traffic()["reasons"]


@pytest.mark.thorough
def test_a_stable_that_is_killed_is_started_at_once_and_a_candidate_that_fails_then_is_rolled_back(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 90.0, "maximum_bake_seconds": 120.0}
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    killed = trial.site.control.pid(trial.stable)
    os.kill(killed, signal.SIGKILL)
    control = trial.site.control
    until(lambda: control.pid(trial.stable) != killed and control.alive(trial.stable), 20)  # not at the end of the bake
    until(lambda: trial.site.router.usable(trial.stable) is True, 20)  # it had ejected it for a few seconds
    trial.site.await_answers(200)
    trial.site.control.fault(trial.candidate, failure_fraction=1.0)
    judgement = running.result(timeout=60)
    assert judgement.verdict is Verdict.NO_GO, judgement
    trial.assert_rolled_back()
    assert trial.lost_unary == {}, "one of them answered all the time"
