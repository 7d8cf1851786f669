"""Runs that follow each other with one release, and what a canary never does. The site is in memory."""

from __future__ import annotations

import pytest
from simulated import Killed, Site
from test_one_way_back import Served

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.people import answer
from llm_pipeline.canary.record import PauseReason, Phase
from llm_pipeline.canary.router import RouteState
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def rolled_back(site: Site) -> None:
    ensure_rolled_back(site.place, "r1")


def test_a_retry_within_the_run_returns_the_recorded_judgement_and_the_next_run_tries_again(site) -> None:
    site.faulty = True
    refused, began = site.step(20), site.record().began_at
    assert refused.verdict == "NO_GO"
    site.faulty = False
    assert (site.step(20), site.record().began_at) == (refused, began), "the same run does not try twice"
    with pytest.raises(ConfigError, match="not the next one"):
        site.step(50, run="second run")
    assert (site.record().run, site.record().phase) == ("run", Phase.ROLLED_BACK)
    assert site.step(20, run="second run").verdict == "GO"
    record = site.record()
    assert (record.run, record.phase, record.passed_percent) == ("second run", Phase.PASSED, 20.0)
    assert record.attempt == 2
    assert refused.summary in [event.summary for event in record.events]


def test_an_unfinished_canary_and_what_was_approved_of_it_are_the_next_runs(site) -> None:
    site.policy["approve_before_percent"] = [50]
    assert site.steps(20, 50) == ["GO", "INCONCLUSIVE"]
    answer(site.store, "r1", "cpu", 50, approved=True, by="alice")
    assert site.steps(50, 100, run="second run") == ["GO", "GO"]
    assert (site.record().run, site.record().began_run, site.record().attempt) == ("second run", "run", 1)


def test_a_run_that_died_rolling_back_is_rolled_back_before_the_next_run_tries_again(site) -> None:
    site.faulty, site.in_drain = True, lambda: setattr(site, "dead", True)
    with pytest.raises(Killed):
        site.step(20)
    site.buried().faulty = False
    assert site.record().phase is Phase.ROLLING_BACK
    assert site.step(20, run="second run").verdict == "GO"
    assert (site.record().attempt, site.kinds().count("rolled back")) == (2, 1)
    assert site.weights() == {"blue": 8_000, "green": 2_000}


def test_a_promotion_stands_for_the_next_run_until_production_moves_past_it(tmp_path) -> None:
    site = Served(tmp_path)
    assert site.steps(50, 100, release="r1") == ["GO"] * 2
    promoted = site.record().judgement
    assert site.step(50, run="second run") == promoted, "not settled yet: nothing to try again"
    assert site.weights() == {"green": 9_800, "blue": 200}
    site.settle("r1")
    site.roll_back()
    assert site.step(50, run="third run").verdict == "GO"
    assert site.record().attempt == 2


def test_a_first_deployment_takes_all_traffic_at_once_and_is_not_rolled_back(tmp_path) -> None:
    site = Site(tmp_path, first=None, running=set(), serves={})
    assert site.steps(20, 50) == ["GO", "GO"]
    record = site.record()
    assert (record.candidate, record.stable, record.passed_percent) == ("blue", None, 100.0)
    rolled_back(site)
    assert (site.record(), site.weights(), site.running) == (record, {"blue": 10_000}, {"blue"})


def test_a_router_that_another_hand_changed_pauses_the_canary_until_it_is_as_before(site) -> None:
    assert site.steps(20) == ["GO"]
    before, _ = site.router.read()
    by_hand = before.model_copy(update={"weights": {"blue": 7_000, "green": 3_000}, "owner": "alice"})
    site.router.state = by_hand
    judgement = site.step(50)
    assert (judgement.verdict, "changed from outside" in judgement.summary) == ("INCONCLUSIVE", True)
    assert site.record().pause is not None
    assert (site.record().pause.reason, site.weights()) == (PauseReason.CHANGED_OUTSIDE, by_hand.weights)
    site.router.state = before
    assert site.steps(50) == ["GO"]


def test_an_idle_slot_that_carries_traffic_is_neither_replaced_nor_stopped(site) -> None:
    site.running.add("green")
    site.router.state = RouteState(weights={"green": 10_000}, owner="unsettled", epoch=0)
    assert site.steps(20) == ["INCONCLUSIVE"]
    rolled_back(site)
    assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"green": 10_000})
    assert [one for one in site.effects if one.startswith(("start", "stop"))] == []


def test_a_canary_that_was_rolled_back_on_request_says_go_to_nothing_more(site) -> None:
    assert site.steps(20) == ["GO"]
    for _ in range(2):
        rolled_back(site)
    for percent in (20, 50):
        judgement = site.step(percent)
        assert (judgement.verdict, judgement.summary) == ("INCONCLUSIVE", "rolled back at 20 % by the end of its run")
    assert (site.weights(), site.running) == ({"blue": 10_000}, {"blue"})
