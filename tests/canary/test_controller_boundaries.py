"""A controller killed at every boundary there is: before and after each document, each route and each slot it touches.

Boundaries are counted in a run that nobody kills, so a new one is covered by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated import Killed, Site

from llm_pipeline.canary.people import answer
from llm_pipeline.canary.record import CanaryJournal, Phase

pytestmark = pytest.mark.usefixtures("fast")

Act = Callable[[Site], object]
EVERY = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.thorough)])


def killed_everywhere(root: Path, act: Act, every: int, **settings: Any) -> Iterator[Site]:
    """The site after a controller was killed at each boundary of `act`, or every so many, one site a boundary."""
    dry = Site(root / "dry", **settings)
    act(dry)
    assert dry.boundary > 20
    for boundary in range(1, dry.boundary + 1, every):
        site = Site(root / str(boundary), die_at=boundary, **settings)
        try:
            act(site)
        except Killed:
            yield site.buried()


def promote(site: Site) -> list[str]:
    return site.steps(20, 50, 100)


def moments(site: Site) -> list[str]:
    told = [event.summary for event in site.record().events if event.kind in ("started", "shifted", "promoted")]
    return [summary.partition(":")[0] for summary in told]


@EVERY
def test_killed_at_every_boundary_of_a_good_canary_the_next_controller_promotes_it(tmp_path, every: int) -> None:
    count = 0
    for site in killed_everywhere(tmp_path, promote, every):
        count += 1
        assert promote(site)[-1] == "GO", site.effects
        record = site.record()
        assert (record.phase, record.attempt) == (Phase.PROMOTED, 1), site.effects
        assert site.weights() == {"green": 9_800, "blue": 200}, site.effects
        moved = [f"{percent} % of the traffic to green" for percent in (20, 50, 100)]
        assert moments(site) == ["candidate started in green", *moved, "no regression at 98 %"], site.effects
        assert [event.number for event in record.events] == list(range(1, len(record.events) + 1))
        assert site.kinds().count("promoted") == 1
        shares = [state.weights.get("green", 0) for state in site.told]
        assert shares == sorted(shares), "traffic never goes back on its way up"
    assert count > 50 / every


@EVERY
def test_killed_at_every_boundary_of_a_failing_canary_all_traffic_ends_on_stable(tmp_path, every: int) -> None:
    for site in killed_everywhere(tmp_path, promote, every, faulty=True):
        assert promote(site) == ["NO_GO"], site.effects
        assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000}), site.effects
        assert site.running == {"blue"}
        assert site.kinds().count("rolled back") == 1


@EVERY
def test_killed_at_every_boundary_around_an_approval_nothing_is_asked_twice_or_begun_without_it(
    tmp_path, every: int
) -> None:
    policy = {**Site(tmp_path / "policy").policy, "approve_before_percent": [100], "steps_percent": [20, 100]}

    def ask_and_go_on(site: Site) -> None:
        assert site.steps(20, 100) == ["GO", "INCONCLUSIVE"]
        answer(site.store, "r1", "cpu", 100, approved=True, by="alice")
        assert site.steps(100) == ["GO"]

    for site in killed_everywhere(tmp_path, ask_and_go_on, every, policy=policy):
        seen = [state.weights.get("green", 0) for state in site.told]
        if site.steps(20, 100)[-1] != "GO":
            assert max(seen, default=0) <= 2_000, site.effects
            answer(site.store, "r1", "cpu", 100, approved=True, by="alice")
        assert site.steps(100) == ["GO"], site.effects
        assert site.record().phase is Phase.PROMOTED
        assert site.kinds().count("approval asked") == 1


@EVERY
def test_an_older_release_killed_at_any_boundary_is_rolled_back_before_the_newer_one_begins(
    tmp_path, every: int
) -> None:
    for site in killed_everywhere(tmp_path, lambda site: site.steps(20, 50), every):
        before = len(site.told)
        assert site.steps(20, release="r2", run="newer") == ["GO"], site.effects
        assert site.record("r2").passed_percent == 20.0
        shares = [state.weights.get("green", 0) for state in site.told[before:]]
        assert (shares[-1], any(shares[:-1])) == (2_000, False), site.effects
        older = CanaryJournal(site.store, "r1", "cpu").load()
        assert older is None or older.phase is Phase.ROLLED_BACK


def test_a_first_deployment_whose_routes_the_router_does_not_take_is_not_promoted(tmp_path, monkeypatch) -> None:
    site = Site(tmp_path, first=None, running=set(), serves={})
    with monkeypatch.context() as deaf:
        deaf.setattr(site.router, "converged", lambda _: False)
        assert site.steps(20) == ["INCONCLUSIVE"]
    assert (site.record().phase, site.running) == (Phase.ROLLED_BACK, set())
    assert site.steps(20, run="next run") == ["GO"]
    assert (site.record().phase, site.weights()) == (Phase.PROMOTED, {"blue": 10_000})
