"""A person pauses a canary with users on it: a real Envoy, servers and users."""

from __future__ import annotations

import time

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase
from llm_pipeline.operations.pausing import pause, resume

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_users_of_a_paused_canary_are_served_at_its_split_until_it_is_resumed(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 3.0, "maximum_bake_seconds": 20.0}
    trial.policy["pause_deadline_seconds"] = 60.0
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    assert pause(trial.site.store, "cpu", by="alice").counted
    weights = trial.site.weights()
    time.sleep(8.0)
    assert (running.done(), trial.site.weights(), trial.record.standing) == (False, weights, "baking, paused by alice")
    assert resume(trial.site.store, "cpu", by="alice").counted
    assert running.result(timeout=80).verdict is Verdict.GO
    assert trial.lost == {}, trial.site.traffic()["reasons"]


def test_a_paused_candidate_that_begins_to_fail_is_rolled_back(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 20.0, "maximum_bake_seconds": 40.0}
    trial.policy["pause_deadline_seconds"] = 60.0
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    assert pause(trial.site.store, "cpu", by="alice").counted
    trial.site.control.fault(trial.candidate, failure_fraction=1.0)
    assert running.result(timeout=80).verdict is Verdict.NO_GO
    trial.assert_rolled_back()
