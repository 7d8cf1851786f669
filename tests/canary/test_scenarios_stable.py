"""What a canary does when the trouble is stable's."""

from __future__ import annotations

import os
import signal
import time

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import all_to, other_slot

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_a_stable_that_is_killed_is_started_at_once_and_a_candidate_that_fails_then_is_rolled_back(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 90.0, "maximum_bake_seconds": 120.0}
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    killed = trial.site.control.pid(trial.stable)
    os.kill(killed, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while trial.site.control.pid(trial.stable) == killed or not trial.site.control.alive(trial.stable):
        assert time.monotonic() < deadline, "it is started anew, not at the end of the bake"
        time.sleep(0.05)
    while not trial.site.router.usable(trial.stable):  # it had ejected it for a few seconds
        assert time.monotonic() < deadline + 20
        time.sleep(0.05)
    trial.site.await_answers(200)
    trial.site.control.fault(trial.candidate, failure_fraction=1.0)
    judgement = running.result(timeout=60)
    assert judgement.verdict is Verdict.NO_GO, judgement
    trial.assert_rolled_back()
    assert trial.lost_unary == {}, "one of them answered all the time"


def test_a_candidate_that_waits_for_its_first_step_answers_for_a_production_that_dies(trial) -> None:
    trial.policy |= {"minimum_requests": 1_000_000, "maximum_bake_seconds": 8.0}
    running = trial.start(1)
    trial.await_phase(Phase.WARM, 0)
    deadline = time.monotonic() + 60
    while trial.site.router.read()[0].standby != trial.candidate:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    sent = sum(trial.site.traffic()["sent"].values())
    trial.site.await_answers(50)
    with trial.site.control.kept_dead(trial.stable):
        trial.site.await_answers(300)
    assert running.result(timeout=80).verdict is Verdict.INCONCLUSIVE
    sent = sum(trial.site.traffic()["sent"].values()) - sent
    assert (trial.lost_unary, sent > 300) == ({}, True), trial.site.traffic()["reasons"]
    assert sum(trial.lost.values()) <= 5, "only streams in flight at that moment can be cut"
    assert (trial.record.stood_in or 0) > 100
    assert trial.events == ["started", "stood in", "rolling back", "rolled back"]
    assert trial.site.router.read()[0].standby is None


def test_with_a_version_that_stands_by_a_dead_production_loses_no_unary_request_of_either_kind(live) -> None:
    live.control.ensure(other_slot(live.stable))
    epoch = live.router.read()[0].epoch + 1
    live.router.write(all_to(live.stable, owner="settled", epoch=epoch, standby=other_slot(live.stable)), None)
    live.await_answers(100)
    before = live.failures()
    os.kill(live.control.pid(live.stable), signal.SIGKILL)
    live.await_answers(300)
    live.control.ensure(live.stable)
    live.await_answers(100)
    lost = live.failures() - before
    live.control.stop(other_slot(live.stable))
    assert {kind: count for kind, count in lost.items() if "unary" in kind} == {}, live.traffic()["reasons"]
    assert sum(lost.values()) <= 5, "only streams in flight at that moment can be cut"
