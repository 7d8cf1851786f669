"""What the controller does step by step, and what it never does; the target is in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from simulated import CANDIDATE, LONGER, Counts, Killed, Served, Site, Slots, guard
from test_guard import LATER

from llm_pipeline.base.errors import ConfigError, PipelineError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.controller import CountedTraffic
from llm_pipeline.canary.metrics import ArmWindow, SourceDown
from llm_pipeline.canary.moving import NoWayBack
from llm_pipeline.canary.people import answer
from llm_pipeline.canary.record import PauseReason, Phase
from llm_pipeline.canary.router import ALL, Patience, RouteState, SlotName
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def taken_back(site: Site) -> None:
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
    taken_back(site)
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
    taken_back(site)
    assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"green": 10_000})
    assert [one for one in site.effects if one.startswith(("start", "stop"))] == []


def test_a_canary_that_was_rolled_back_on_request_says_go_to_nothing_more(site) -> None:
    assert site.steps(20) == ["GO"]
    for _ in range(2):
        taken_back(site)
    for percent in (20, 50):
        judgement = site.step(percent)
        assert (judgement.verdict, judgement.summary) == ("INCONCLUSIVE", "rolled back at 20 % by the end of its run")
    assert (site.weights(), site.running) == ({"blue": 10_000}, {"blue"})


@pytest.fixture
def counted(tmp_path) -> tuple[Site, Counts]:
    site = Site(tmp_path)
    source = Counts(site)
    site.traffic = CountedTraffic(source)
    return site, source


def test_a_source_that_is_down_pauses_in_mid_canary_and_goes_on_afterwards(counted) -> None:
    site, source = counted
    assert site.step(20).verdict == "GO"
    source.trouble = SourceDown("an arm has another name")
    judgement = site.step(50)
    assert judgement.verdict == "INCONCLUSIVE"
    assert "an arm has another name" in site.record().events[-1].summary, "people are told"
    assert (site.record().pause.reason, site.record().watched_seconds) == (PauseReason.NO_SOURCE, 0.0)
    assert site.weights() == {"blue": 5_000, "green": 5_000}
    source.trouble = None
    assert site.step(50).verdict == "GO"


def test_a_source_that_was_never_there_shifts_nothing(counted) -> None:
    site, source = counted
    source.trouble = SourceDown("nothing there")
    judgement = site.step(20)
    assert (judgement.verdict, judgement.summary) == ("INCONCLUSIVE", "the source of metrics is down: nothing there")
    assert all(state.weights.get("green", 0) == 0 for state in site.told)


def test_a_candidate_that_vanishes_from_the_source_pauses_the_canary(counted, monkeypatch) -> None:
    site, source = counted
    assert site.step(20).verdict == "GO"
    monkeypatch.setattr(source, "window", lambda since: ({"blue": ArmWindow(requests=1)}, since))
    assert "there are no requests of slot green" in site.step(50).summary


@pytest.mark.parametrize("what", ["abandoned", "waiting"])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_candidate_whose_users_leave_without_an_answer_or_still_wait_is_rolled_back(site, what, share) -> None:
    site.policy |= LONGER
    setattr(site, what, share)
    assert site.steps(20, 50, 100) == ["NO_GO"]
    assert site.weights() == {"blue": 10_000}
    judgement = site.record().judgement
    assert judgement is not None
    assert "slow requests hung without an answer" in judgement.summary


def test_a_candidate_whose_answers_repeat_one_word_is_rolled_back(site) -> None:
    site.garbled = True
    assert site.steps(20, 50, 100) == ["NO_GO"]
    assert "empty or cut answers" in site.record().judgement.summary  # type: ignore[union-attr]
    assert site.weights() == {"blue": 10_000}


def test_a_candidate_that_turns_slow_at_the_last_step_is_compared_with_stable_and_rolled_back(site) -> None:
    site.policy |= LONGER
    site.requests_per_look = 2_000
    assert site.steps(20, 50) == ["GO", "GO"]
    site.slow = True
    assert site.steps(100) == ["NO_GO"]
    assert site.weights() == {"blue": 10_000}


@pytest.mark.parametrize("percent", [20, 50, 100])
def test_a_router_that_ended_is_started_by_whoever_owns_the_canary(site, percent) -> None:
    before = [step for step in (20, 50, 100) if step < percent]
    assert site.steps(*before) == ["GO"] * len(before)
    site.router_ended = True
    assert site.steps(percent) == ["GO"]
    assert not site.router_ended
    assert site.kinds().count("router revived") == 1


def test_a_router_that_does_not_start_passes_no_step(site) -> None:
    """Its users are refused, and nothing is seen of them."""
    assert site.steps(20, 50) == ["GO", "GO"]
    site.router_ended, site.router_starts = True, False
    assert site.step(100).verdict != "GO"


LONG_BAKE = {"minimum_bake_seconds": 60.0, "maximum_bake_seconds": 60.0}


def test_a_stable_that_is_killed_in_a_bake_is_started_at_the_next_look_and_a_failing_candidate_ends_then(site) -> None:
    site.policy |= LONG_BAKE
    seen = []

    def fails() -> None:
        seen.append(site.running.copy())
        site.faulty = True

    site.at_looks({3: lambda: site.running.discard("blue"), 5: fails})
    judgement = site.step(20)
    assert seen == [{"blue", "green"}]
    assert (judgement.verdict, site.record().phase) == ("NO_GO", Phase.ROLLED_BACK)
    assert site.record().watched_seconds < 30
    assert (site.weights(), site.running, site.lost) == ({"blue": 10_000}, {"blue"}, 0)


def test_a_candidate_that_fails_beside_a_stable_that_had_failed_is_rolled_back_as_soon_as_stable_answers(site) -> None:
    site.policy |= LONG_BAKE
    site.stable_starts = False

    def starts() -> None:
        site.stable_starts = True

    def fails() -> None:
        site.faulty = True

    site.at_looks({3: lambda: site.running.discard("blue"), 20: fails, 40: starts})
    judgement = site.step(20)
    assert (judgement.verdict, site.record().phase) == ("NO_GO", Phase.ROLLED_BACK)
    assert "stable answers again" in judgement.summary
    assert site.record().watched_seconds < 30


def test_a_power_cut_does_not_count_against_the_candidate(site) -> None:
    site.policy |= LONG_BAKE
    site.at_looks({3: site.running.clear})
    judgement = site.step(20)
    assert (judgement.verdict, site.record().phase, site.running) == ("INCONCLUSIVE", Phase.ROLLED_BACK, {"blue"})
    assert "had both ended" in judgement.summary


class WatchedSlots(Slots):
    """Slots whose candidate is another one from the given look on."""

    def __init__(self, site: Site, another_from: int) -> None:
        super().__init__(site)
        self.another_from, self.looks = another_from, 0

    def differs(self, slot: SlotName, repository: ArtifactRef) -> str | None:
        assert (slot, repository) == ("green", CANDIDATE)
        self.looks += 1
        return "it gives 0 of 24 golden answers" if self.looks >= self.another_from else None


@pytest.mark.parametrize("step", [1, 3])
def test_another_model_in_the_slot_on_trial_is_rolled_back(tmp_path: Path, step: int) -> None:
    site = Site(tmp_path)
    site.slots = slots = WatchedSlots(site, step)
    assert site.steps(20, 50, 100) == ["GO"] * (step - 1) + ["NO_GO"]
    assert slots.looks == step, "it is looked at once a step"
    record = site.record()
    assert record.phase is Phase.ROLLED_BACK
    assert record.judgement is not None
    assert "does not serve this release" in record.judgement.summary
    assert "0 of 24 golden answers" in record.judgement.summary
    assert site.weights() == {"blue": ALL}


def while_it_waits(site: Site, act: Callable[[], None], *, look: int = 3) -> None:
    """Do something at one of the looks before the first step, which there is too little traffic for."""
    site.serve_first()
    site.policy |= {"minimum_requests": 10_000, "maximum_bake_seconds": 0.05}
    baseline, looks = site.traffic.baseline, iter(range(1_000))

    def counted(*arguments):
        if next(looks) == look:
            act()
        return baseline(*arguments)

    site.traffic.baseline = counted  # type: ignore[method-assign]


def end_stable(site: Site) -> None:
    site.running.discard("blue")


def test_a_candidate_that_waits_for_its_first_step_answers_for_a_production_that_dies(site) -> None:
    seen = []
    while_it_waits(site, lambda: seen.append(site.router.state) or end_stable(site))
    assert site.step(20).verdict == "INCONCLUSIVE"
    assert (seen[0].weights, seen[0].standby, seen[0].candidate) == ({"blue": 10_000}, "green", None)
    assert (site.sent > 0, site.lost) == (True, 0)
    assert (site.running, site.record().phase) == ({"blue"}, Phase.ROLLED_BACK)
    assert (site.router.state.standby, site.weights()) == (None, {"blue": 10_000})


def test_what_it_answered_so_says_nothing_about_stable(site) -> None:
    before, after = [], []
    while_it_waits(site, lambda: before.append(len(site.traffic._of_stable(site.record()))) or end_stable(site))
    while_it_waits(site, lambda: after.append(len(site.traffic._of_stable(site.record()))), look=5)
    while_it_waits(site, lambda: site.running.add("blue"), look=6)
    site.slots.ended = lambda _: False  # and nobody notices
    site.step(20)
    assert (before, after) == ([100], [0])


def test_one_that_answers_nothing_stands_by_for_nobody(site) -> None:
    site.slots.warm_up = lambda *_: site.slots.__class__.warm_up(site.slots, *_).model_copy(update={"answered": 0})
    assert site.step(20).verdict == "NO_GO"
    assert all(told.standby is None for told in site.told)


@pytest.mark.parametrize("stable_starts", [True, False])
def test_one_that_is_taken_back_stands_by_no_more_though_nobody_else_answers(site, stable_starts: bool) -> None:
    def leave() -> None:
        site.stable_starts = stable_starts
        end_stable(site)
        taken_back(site)

    while_it_waits(site, leave)
    with pytest.raises(PipelineError):
        site.step(20)
    assert site.router.state.standby is None
    assert ("blue" in site.running) == stable_starts


def test_the_guard_ends_one_that_nobody_drives(site) -> None:
    while_it_waits(site, lambda: setattr(site, "dead", True))
    with pytest.raises(Killed):
        site.step(20)
    site.buried()
    assert site.router.state.standby == "green"
    assert guard(site) == []
    assert [action.what for action in guard(site, LATER)] == ["rolled back"]
    assert site.router.state.standby is None


PATIENT = Patience(write=0.1, confirm=0.1, prove=0.02, usable=0.1, blind_drain=0.05)


def drained(site: Site) -> str:
    """What the canary's last event says."""
    ensure_rolled_back(replace(site.place, patience=PATIENT), "r1")
    record = site.record()
    assert (record.phase, site.weights(), site.running) == (Phase.ROLLED_BACK, {"blue": 10_000}, {"blue"})
    return record.events[-1].summary


def test_streams_that_end_within_the_policy_s_limit_are_all_waited_for(site) -> None:
    site.policy["drain_seconds"] = 20.0
    assert site.step(20).verdict == "GO"
    site.in_flight["green"] = 13
    ended = threading.Timer(0.6, site.in_flight.clear)
    began = time.monotonic()
    ended.start()
    assert drained(site) == "all traffic is on stable"
    assert time.monotonic() - began > 0.5


@pytest.mark.parametrize(
    ("seconds", "silent", "words"),
    [
        (0.2, (), "; 13 requests still in flight were cut after 0.2 s"),
        (0.1, ("router",), "; 13 requests still in flight were cut after 0.1 s"),
        (20.0, ("router", "server"), ""),
    ],
)
def test_what_is_still_in_flight_at_the_limit_is_cut_and_counted_where_somebody_tells(
    site, monkeypatch, seconds: float, silent: tuple[str, ...], words: str
) -> None:
    site.policy["drain_seconds"] = seconds
    assert site.step(20).verdict == "GO"
    site.in_flight["green"] = 13
    if "router" in silent:
        monkeypatch.setattr(site.router, "active_requests", lambda _: None)
    if "server" in silent:
        monkeypatch.setattr(site.slots, "in_flight", lambda _: None)
    assert drained(site) == f"all traffic is on stable{words}"


def in_half(site: Site) -> Site:
    assert site.steps(20, 50) == ["GO", "GO"]
    site.sent = site.lost = 0
    return site


def is_back(site: Site) -> bool:
    return (site.record().phase, site.weights(), site.running) == (Phase.ROLLED_BACK, {"blue": 10_000}, {"blue"})


def test_a_dead_stable_is_started_before_traffic_goes_to_it(site) -> None:
    in_half(site)
    site.running.discard("blue")
    taken_back(site)
    assert is_back(site)
    assert site.effects.index("start blue") < site.effects.index("stop green")
    assert site.sent > 0
    assert site.lost == 0, "the candidate answered until stable did"


def test_the_last_server_that_answers_is_not_stopped_and_keeps_the_traffic(site) -> None:
    in_half(site)
    site.running.discard("blue")
    site.stable_starts = False
    with pytest.raises(NoWayBack, match="no GPU is free"):
        taken_back(site)
    assert (site.record().phase, site.running) == (Phase.ROLLING_BACK, {"green"})
    assert site.weights() == {"blue": 5_000, "green": 5_000}, "on trial, so the candidate answers for both"
    assert site.lost == 0
    site.stable_starts = True
    taken_back(site)
    assert is_back(site)
    assert site.lost == 0


def test_where_both_are_dead_stable_is_started_and_the_traffic_waits_for_it_if_it_does_not_start(site) -> None:
    in_half(site)
    site.running.clear()
    site.stable_starts = False
    with pytest.raises(NoWayBack):
        taken_back(site)
    assert (site.record().phase, site.weights()) == (Phase.ROLLING_BACK, {"blue": 10_000})
    site.stable_starts = True
    taken_back(site)
    assert is_back(site)


def test_a_stable_that_hangs_while_the_candidate_answers_is_started_anew(site) -> None:
    in_half(site)
    site.hung.add("blue")
    taken_back(site)
    assert is_back(site)
    assert site.effects[-20:].count("stop blue") == 1
    assert site.lost == 0


def test_where_neither_answers_stable_is_left_running_and_gets_the_traffic(site) -> None:
    in_half(site)
    site.hung |= {"blue", "green"}
    taken_back(site)
    assert is_back(site)
    assert "stop blue" not in site.effects, "a host that is busy for a while must not lose its production"


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_killed_at_every_boundary_of_a_rollback_to_a_dead_stable_nothing_is_lost(tmp_path, site, every: int) -> None:
    in_half(site)
    start = site.boundary
    site.running.discard("blue")
    taken_back(site)
    for boundary in range(start + 1, site.boundary + 1, every):
        again = in_half(Site(tmp_path / str(boundary)))
        again.running.discard("blue")
        again.die_at = again.boundary + boundary - start
        with pytest.raises(Killed):
            taken_back(again)
        taken_back(again.buried())
        assert is_back(again), again.effects
        assert again.lost == 0, again.effects
