"""What a canary does when the trouble is stable's."""

from __future__ import annotations

import os
import signal

import pytest

from llm_pipeline.canary import approvals
from llm_pipeline.canary.record import PauseReason, Phase
from llm_pipeline.canary.router import ALL
from llm_pipeline.verdict import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_when_stable_dies_nobody_is_blamed_and_no_more_traffic_goes_to_it_whatever_the_policy_says(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 2.0, "maximum_bake_seconds": 3.0}
    assert trial.policy["on_undecided"] == "roll_back"
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    os.kill(trial.site.control.pid(trial.stable), signal.SIGKILL)
    judgement = running.result(timeout=20)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "stable itself" in [fact.name for fact in judgement.evidence]
    record = trial.record
    assert record.pause is not None
    assert (record.phase, record.pause.reason) == (Phase.PAUSED, PauseReason.UNDECIDED)
    assert trial.site.weights() == {trial.stable: ALL // 2, trial.candidate: ALL // 2}
    assert trial.site.control.alive(trial.candidate)
    assert trial.site.control.alive(trial.stable), "started anew, for whoever decides"
    assert "was started anew" in judgement.summary
    approvals.answer(trial.site.store, trial.release_id, "cpu", 50, approved=True, by="alice")
    assert trial.step(50).verdict is Verdict.GO
    assert trial.record.phase is Phase.PASSED
    assert trial.lost_unary == {}, "the candidate answered for stable all the time"
