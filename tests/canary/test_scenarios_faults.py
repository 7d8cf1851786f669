"""What may be wrong with a candidate, under unary and streaming traffic over HTTP and gRPC at once."""

from __future__ import annotations

import os
import signal

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_a_healthy_candidate_takes_all_traffic_in_five_steps_and_no_request_of_any_kind_is_lost(trial) -> None:
    trial.policy |= {"minimum_requests": 2, "maximum_bake_seconds": 60.0}
    trial.reach(1, 5, 25, 50, 100)
    assert trial.record.phase is Phase.PROMOTED
    assert trial.site.weights() == {trial.candidate: 9_800, trial.stable: 200}
    assert trial.lost == {}


def test_a_candidate_that_fails_at_1_percent_is_rolled_back_there_and_no_user_notices(trial) -> None:
    trial.site.control.drill = {"failure_fraction": 1.0}
    judgement = trial.step(1)
    assert judgement.verdict is Verdict.NO_GO
    assert "at 1 %" in judgement.summary
    trial.assert_rolled_back()
    assert trial.lost == {}


def test_a_candidate_that_begins_to_fail_at_50_percent_is_rolled_back_and_no_user_notices(trial) -> None:
    failed = trial.fault_at_50_percent(failure_fraction=1.0)
    assert failed.verdict is Verdict.NO_GO
    trial.assert_rolled_back()
    assert trial.lost == {}


def test_a_candidate_killed_at_50_percent_is_rolled_back_and_loses_no_unary_request_of_either_kind(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 10.0}
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    os.kill(trial.site.control.pid(trial.candidate), signal.SIGKILL)
    assert running.result(timeout=80).verdict is Verdict.NO_GO
    trial.assert_rolled_back()
    assert trial.lost_unary == {}, trial.site.traffic()["reasons"]
    assert sum(trial.lost.values()) <= 5, "only streams in flight at that moment can be cut"


@pytest.mark.parametrize("how", ["its model hangs", "its process hangs"])
def test_a_candidate_that_hangs_without_a_reset_is_rolled_back_and_loses_no_unary_request(trial, how) -> None:
    trial.policy |= {"steps_percent": (25.0, 100.0), "minimum_bake_seconds": 10.0}
    running = trial.start(25)
    trial.await_phase(Phase.BAKING, 25)
    if how == "its model hangs":
        trial.site.control.fault(trial.candidate, hang=True)
    else:
        os.kill(trial.site.control.pid(trial.candidate), signal.SIGSTOP)
    assert running.result(timeout=80).verdict is Verdict.NO_GO
    trial.assert_rolled_back()
    assert trial.lost_unary == {}, trial.site.traffic()["reasons"]
