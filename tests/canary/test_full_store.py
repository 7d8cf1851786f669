"""A store that takes nothing while a canary is watched: verdicts wait for it. The site is in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated import Site

from llm_pipeline.canary.record import Phase

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def at_looks(site: Site, acts: dict[int, Callable[[], None]]) -> None:
    """Do something as the log is read for so many times since the step began."""
    read, looks = site.log.read, iter(range(1_000))

    def counted(*arguments, **settings):
        if act := acts.get(next(looks)):
            act()
        return read(*arguments, **settings)

    site.log.read = counted


def fill(site: Site) -> None:
    site.store_takes = False


def make_room(site: Site) -> None:
    site.store_takes = True


def test_a_candidate_that_fails_while_the_store_is_full_is_rolled_back_for_that_reason_once_it_has_room(site) -> None:
    site.policy["minimum_bake_seconds"] = site.policy["maximum_bake_seconds"] = 60.0

    def break_down() -> None:
        site.faulty = True

    at_looks(site, {2: lambda: fill(site), 4: break_down, 9: lambda: make_room(site)})
    judgement = site.step(20)
    assert judgement.verdict == "NO_GO"
    assert "fails request after request" in judgement.summary
    assert (site.weights(), site.record().phase, site.running) == ({"blue": 10_000}, Phase.ROLLED_BACK, {"blue"})
    assert [told.weights for told in site.told][-1] == {"blue": 10_000}


def test_a_store_that_is_full_for_a_while_ends_no_healthy_canary(site) -> None:
    site.policy |= {"minimum_bake_seconds": 0.1, "maximum_bake_seconds": 60.0}  # ten looks at least
    at_looks(site, {1: lambda: fill(site), 6: lambda: make_room(site)})
    assert site.steps(20) == ["GO"]
    assert site.record().phase is Phase.PASSED
    assert site.weights() == {"blue": 8_000, "green": 2_000}
