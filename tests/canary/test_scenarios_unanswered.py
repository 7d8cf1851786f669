"""Candidates that answer some users never, and others only in part, before users who leave after three seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_site import LiveSite

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    place = LiveSite(tmp_path_factory.mktemp("impatient"))
    try:
        place.up()
        place.mixed_users(50.0, wait_seconds=3.0)
        yield place
    finally:
        place.down()


@pytest.mark.parametrize("drill", [{"hang_fraction": 0.3}, {"stall_fraction": 0.3}], ids=["hang", "stall"])
def test_a_candidate_that_leaves_a_third_of_its_users_waiting_is_rolled_back(trial, drill) -> None:
    trial.policy |= {"steps_percent": (25.0, 50.0, 100.0), "minimum_bake_seconds": 30.0, "maximum_bake_seconds": 60.0}
    trial.site.control.drill = drill
    judgement = trial.step(25)
    assert judgement.verdict is Verdict.NO_GO, judgement.summary
    assert "candidate's" not in judgement.summary, "its health is fine"
    trial.assert_rolled_back()


def test_users_who_leave_both_versions_alike_move_no_verdict(trial) -> None:
    trial.policy |= {"steps_percent": (25.0, 50.0, 100.0), "minimum_bake_seconds": 8.0, "maximum_bake_seconds": 60.0}
    trial.site.control.drill = {"hang_fraction": 0.05}
    trial.site.control.fault(trial.stable, hang_fraction=0.05)
    try:
        assert trial.step(25).verdict is Verdict.GO
    finally:
        trial.site.control.fault(trial.stable)
    assert trial.record.phase is Phase.PASSED
