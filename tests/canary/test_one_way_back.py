"""Rolling back, whoever asks and whenever, and who serves meanwhile: after it everything says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from simulated import Killed, Served, guard

from llm_pipeline.base.errors import ConfigError, Fenced
from llm_pipeline.canary.moving import NoWayBack
from llm_pipeline.canary.record import Phase, judged_by_others, lease_name, take_over
from llm_pipeline.canary.router import RouteState, all_to
from llm_pipeline.operations import rollback as way_back
from llm_pipeline.operations.rollback import carry_on, ensure_rolled_back, force
from llm_pipeline.operations.status import disagreements
from llm_pipeline.operations.switching import start
from llm_pipeline.operations.upkeep import NotPromoted
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import read_place

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Served:
    return Served(tmp_path)


def in_the_middle(site: Served) -> None:
    site.release("r1")
    assert site.steps(50, release="r2") == ["GO"]


def promoted(site: Served) -> None:
    assert site.steps(50, 100, release="r1") == ["GO"] * 2


def settled(site: Served) -> None:
    site.release("r1")


@pytest.mark.parametrize(
    ("reach", "left", "back"), [(in_the_middle, "r2", "r1"), (promoted, "r1", "r0"), (settled, "r1", "r0")]
)
def test_whenever_it_is_asked_it_leaves_the_newest_release_once(
    site, reach: Callable[[Served], None], left: str, back: str
) -> None:
    reach(site)
    site.sent = site.lost = 0
    site.roll_back()
    assert (site.serving(), site.record(left).phase) == (back, Phase.ROLLED_BACK)
    found = judged_by_others(site.store, left, "cpu", wait_seconds=0.0)
    assert found is not None
    assert (found.verdict, found.summary.endswith("by anna: it answers nonsense")) == ("INCONCLUSIVE", True)
    assert len(site.running) == 1
    effects = [effect for effect in site.effects if "leases" not in effect]
    site.roll_back()
    site.roll_back(leaving=left)
    ensure_rolled_back(site.place, left)
    assert [effect for effect in site.effects if "leases" not in effect] == effects, "asked again, nothing is changed"
    assert site.serving() == back
    assert (site.sent > 0, site.lost) == (True, 0)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("reach", [in_the_middle, promoted, settled])
def test_killed_anywhere_the_guard_or_the_next_one_who_asks_finishes_it_and_goes_no_further(
    tmp_path, reach, every: int
) -> None:
    back = "r1" if reach is in_the_middle else "r0"
    for number, (site, boundary) in enumerate(at_each_boundary(tmp_path, reach, every)):
        site.die_at = boundary
        with pytest.raises(Killed):
            site.roll_back()
        site.buried()
        found = read_place(site.store, "cpu").way_back
        if number % 2 and found is not None and not found.done:
            assert carry_on(site.place) is not None
            assert site.serving() == back, site.effects
        assert carry_on(site.place) is None or number % 2 == 0
        site.roll_back()
        assert site.serving() == back, site.effects
        assert site.lost == 0, site.effects


def at_each_boundary(root: Path, reach: Callable[[Served], None], every: int) -> Iterator[tuple[Served, int]]:
    """A site that is about to roll back, and each boundary of that, counted where nothing disturbs it."""
    dry = Served(root / "dry")
    reach(dry)
    begun = dry.boundary
    dry.roll_back()
    assert dry.boundary - begun > 10
    for boundary in range(1, dry.boundary - begun + 1, every):
        site = Served(root / str(boundary))
        reach(site)
        site.sent = site.lost = 0
        yield site, site.boundary + boundary


def test_what_was_taken_back_is_never_gone_back_to(site) -> None:
    site.release("r1")
    site.roll_back()
    assert site.pointers.taken_back == ("r1",)
    assert site.steps(50, release="r2") == ["GO"]
    site.roll_back()
    assert site.serving() == "r0"
    with pytest.raises(ConfigError, match="no previous release"):
        site.roll_back(leaving="r0")
    assert site.serving() == "r0"
    site.release("r3")
    assert site.serving() == "r3", "the next release finds a router that nobody has changed from outside"
    site.roll_back()
    assert site.serving() == "r0"


def test_production_is_left_only_by_name_once_its_canary_was_taken_back(site) -> None:
    in_the_middle(site)
    site.roll_back()
    site.roll_back()
    assert site.serving() == "r1"
    site.roll_back(leaving="r1")
    assert site.serving() == "r0"


def test_naming_production_ends_the_canary_over_it_too(site) -> None:
    in_the_middle(site)
    site.roll_back(leaving="r1")
    assert (site.serving(), site.record("r2").phase) == ("r0", Phase.ROLLED_BACK)


def test_a_release_that_neither_serves_nor_is_on_trial_is_refused(site) -> None:
    in_the_middle(site)
    with pytest.raises(ConfigError, match="r1 serves on cpu, and r9 is not on trial"):
        site.roll_back(leaving="r9")
    assert site.record("r2").phase is Phase.PASSED


def test_between_promotion_and_settlement_the_server_that_holds_the_traffic_is_the_last_to_stop(site) -> None:
    promoted(site)
    site.running.discard("blue")
    site.sent = site.lost = 0
    site.stable_starts = False
    with pytest.raises(NoWayBack):
        site.roll_back()
    assert (site.running, site.lost) == ({"green"}, 0)
    site.stable_starts = True
    site.roll_back()
    assert (site.serving(), site.lost) == ("r0", 0)
    with pytest.raises(NotPromoted):
        site.settle("r1")


def test_what_somebody_was_killed_rolling_back_is_not_settled(site, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object, **__: object) -> None:
        raise Killed

    promoted(site)
    with monkeypatch.context() as patch:
        patch.setattr(way_back, "end_canary", dies)
        with pytest.raises(Killed):
            site.roll_back()
    with pytest.raises(NotPromoted, match="r1 was rolled back on cpu by anna"):
        site.settle("r1")
    assert carry_on(site.place) is not None
    assert site.serving() == "r0"


def test_production_whose_previous_release_does_not_start_stays(site) -> None:
    site.release("r1")
    site.running.discard("blue")
    site.hung_starts = True
    site.sent = site.lost = 0
    with pytest.raises(NoWayBack):
        site.roll_back()
    assert (site.running & {"green"}, site.weights(), site.lost) == ({"green"}, {"green": 10_000}, 0)


def test_users_are_moved_to_a_restarted_server_once_the_router_takes_it(site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.release("r1")
    site.hung.add("blue")
    asked = []
    monkeypatch.setattr(site.router, "usable", lambda slot: asked.append((slot, site.weights())) or True)
    site.roll_back()
    assert site.serving() == "r0"
    assert ("blue", {"green": 10_000}) in asked


@pytest.mark.parametrize("reach", [settled, in_the_middle])
@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.thorough)])
def test_frozen_at_any_boundary_it_does_not_take_back_what_nobody_had_seen_when_it_was_asked_for(
    tmp_path: Path, reach: Callable[[Served], None], every: int
) -> None:
    for site, boundary in at_each_boundary(tmp_path, reach, every):
        woke: list[int] = []

        def meanwhile(site: Served = site, woke: list[int] = woke) -> None:
            """Its lease expires, the guard carries its way back out, and a newer release goes into production."""
            take_over(site.store, "cpu")
            way_back.carry_on(site.place)
            site.release("r5")
            woke.append(len(site.effects))

        site.freeze_at, site.meanwhile = boundary, meanwhile
        site.roll_back()
        assert site.serving() == "r5", site.effects
        after = [effect for effect in site.effects[woke[0] :] if effect.startswith(("start", "stop", "route"))]
        assert after == [], site.effects


DAY = 24 * 3600.0


@pytest.mark.parametrize("standby", ["blue", "green"])
def test_a_slot_with_traffic_of_its_own_stands_by_nobody(standby) -> None:
    split = {"weights": {"blue": 5_000, "green": 5_000}, "owner": "t", "epoch": 1, "standby": standby}
    for candidate in (None, "green"):
        with pytest.raises(ValidationError, match="cannot stand by"):
            RouteState.model_validate({**split, "candidate": candidate})
    with pytest.raises(ValidationError, match="cannot stand by"):
        all_to("blue", owner="t", epoch=1, standby="blue")


def test_no_candidate_is_started_in_a_slot_that_stands_by(site) -> None:
    site.release("r1")
    stood_by, replace = [], site.slots.replace

    def watched(slot, repository, token) -> None:
        stood_by.append(site.router.state.standby)
        replace(slot, repository, token)

    site.slots.replace = watched
    assert site.steps(50, release="r2") == ["GO"]
    assert stood_by == [None]
    mine = [told.standby for told in site.told if told.owner.startswith("r2@")]
    assert mine == [None, None], "it stands down, then the candidate shares"


def test_it_answers_on_where_a_canary_ends_before_its_candidate_is_started(site, monkeypatch) -> None:
    site.release("r1")

    def dies(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr("llm_pipeline.canary.controller.stand_down", dies)
    with pytest.raises(Killed):
        site.step(50, release="r2")
    site.buried().running.discard("green")
    site.sent, site.lost, site.stable_starts = 0, 0, False
    with pytest.raises(NoWayBack):
        ensure_rolled_back(site.place, "r2")
    assert (site.router.state.standby, site.lost) == ("blue", 0)


def test_before_its_server_is_stopped_it_stands_down(site) -> None:
    site.release("r1")
    assert [action.what for action in guard(site, after=2 * DAY)] == ["stopped previous"]
    assert (site.router.state.standby, site.running) == (None, {"green"})
    assert guard(site, after=2 * DAY) == []
    assert site.router.state.standby is None


def test_what_stands_by_and_never_served_is_a_disagreement(site) -> None:
    site.release("r1")
    served = {"green": site.serves["green"].digest, "blue": "f" * 64}
    (problem,) = disagreements(site.pointers, site.record("r1"), site.router.state, served)
    assert "serves no previous version" in problem


def test_the_guard_starts_a_production_that_was_killed_in_mid_canary_beside_whoever_drives_it(tmp_path) -> None:
    site = Served(tmp_path)
    assert site.steps(50, release="r1") == ["GO"]
    with Lease(site.store, lease_name("cpu")):
        site.running.discard("blue")
        assert [action.what for action in guard(site)] == ["started"]
    assert site.running == {"blue", "green"}


def test_the_guard_starts_production_though_the_store_takes_nothing(tmp_path) -> None:
    site = Served(tmp_path)
    site.store_takes = False
    site.running.discard("blue")
    assert "started" in [action.what for action in guard(site)]
    assert site.running == {"blue"}


def test_the_guard_starts_a_dead_standby(tmp_path) -> None:
    site = Served(tmp_path)
    site.release("r1")
    site.running.discard("blue")
    (action,) = guard(site)
    assert (action.what, action.release_id, site.running) == ("started", "r0", {"blue", "green"})
    assert site.router.state.standby == "blue"


class TestForcedRollback:
    @pytest.fixture
    def site(self, tmp_path) -> Served:
        """r1 serves in green, r0 is warm in blue."""
        found = Served(tmp_path)
        found.release("r1")
        found.sent = found.lost = 0
        return found

    def full(self, site: Served) -> str:
        site.store_takes = False
        return force(site.place, by="anna")

    def test_users_leave_production_and_nothing_is_stopped(self, site) -> None:
        assert self.full(site) == "all traffic is on blue"
        assert (site.weights(), site.router.state.owner) == ({"blue": 10_000}, "forced rollback by anna")
        assert site.running == {"blue", "green"}
        assert "already" in force(site.place, by="anna")
        guard(site)
        assert (site.weights(), site.lost) == ({"blue": 10_000}, 0)
        site.store_takes = True
        site.roll_back()
        assert (site.serving(), site.running, site.lost) == ("r0", {"blue"}, 0)

    def test_a_canary_loses_its_traffic_and_is_ended_by_whoever_asks_again(self, site) -> None:
        assert site.steps(50, release="r2") == ["GO"]
        assert self.full(site) == "all traffic is on green"
        assert site.weights() == {"green": 10_000}
        site.store_takes = True
        site.roll_back()
        assert (site.serving(), site.record("r2").phase) == ("r1", Phase.ROLLED_BACK)

    def test_a_candidate_that_only_stands_by_does_not_become_production(self, site) -> None:
        site.policy |= {"minimum_requests": 10_000, "maximum_bake_seconds": 60.0}
        seen: list[RouteState] = []
        baseline = site.traffic.baseline

        def asked(*arguments):
            if site.router.state.standby == "blue" and not seen:
                site.store_takes = False
                force(site.place, by="anna")
                seen.append(site.router.state)
                site.store_takes = True
            return baseline(*arguments)

        site.traffic.baseline = asked  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            site.step(50, release="r2")
        assert [(state.weights, state.standby) for state in seen] == [({"green": 10_000}, None)]

    def test_a_version_before_that_has_ended_is_started_first(self, site) -> None:
        site.running.discard("blue")
        assert self.full(site) == "all traffic is on blue"
        assert (site.running, site.lost) == ({"blue", "green"}, 0)


def test_start_after_a_power_cut_ends_the_canary_that_nobody_drives(tmp_path) -> None:
    site = Served(tmp_path)
    assert site.steps(50, release="r1") == ["GO"]
    site.running.clear()
    serving = start(site.place, lambda _: site.router)
    record = site.record("r1")
    assert (serving.pointer.release_id, record.phase, site.running) == ("r0", Phase.ROLLED_BACK, {"blue"})
    assert record.judgement is not None
    assert (record.judgement.verdict, "had both ended" in record.judgement.summary) == ("INCONCLUSIVE", True)
    assert site.serving() == "r0"
