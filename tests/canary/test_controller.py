"""Canaries over a real Envoy and real servers, under users of all kinds; `test_scenarios` has the slower ones."""

from __future__ import annotations

import os
import re
import signal

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase

pytestmark = pytest.mark.slow


def test_a_good_candidate_takes_all_traffic_step_by_step_in_numbers_and_loses_no_request(trial) -> None:
    trial.policy |= {"steps_percent": (20.0, 50.0, 100.0)}
    first = trial.step(20)
    assert re.fullmatch(
        r"no regression at 20 %: \d+ candidate and \d+ stable requests, failures 0 and 0", first.summary
    )
    trial.reach(50, 100)
    assert trial.record.phase is Phase.PROMOTED
    assert trial.site.weights() == {trial.candidate: 9_800, trial.stable: 200}, "until it is settled"
    assert trial.site.control.alive(trial.stable), "the old version stays warm"
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


def test_a_rollback_needs_no_admin_interface(trial) -> None:
    trial.policy |= {"steps_percent": (20.0, 100.0)}
    trial.reach(20)
    site = trial.site
    deaf = type(site.router)(site.router.files, site.place.model_copy(update={"admin_port": 18569}), site.slots)
    record = trial.roll_back(router=deaf)
    assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, False)
    assert site.weights() == {trial.stable: 10_000}
    assert trial.lost == {}
