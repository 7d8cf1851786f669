"""A candidate that answers is asked where production fails, before its first step, too; one that was taken back never.

The site is in memory; `test_scenarios` does the same over Envoy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated import Killed, Site
from test_guard import LATER, guard

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.canary.record import Phase
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Site:
    """Its candidates wait for traffic, until they have waited for too long."""
    found = Site(tmp_path)
    found.serve_first()
    found.policy |= {"minimum_requests": 10_000, "maximum_bake_seconds": 0.05}
    return found


def while_it_waits(site: Site, act: Callable[[], None], *, look: int = 3) -> None:
    """Do something at one of the looks before the first step."""
    baseline, looks = site.traffic.baseline, iter(range(1_000))

    def counted(*arguments):
        if next(looks) == look:
            act()
        return baseline(*arguments)

    site.traffic.baseline = counted  # type: ignore[method-assign]


def end_stable(site: Site) -> None:
    site.running.discard("blue")


def taken_back(site: Site) -> None:
    ensure_rolled_back(site.place, "r1")


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
