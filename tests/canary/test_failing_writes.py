"""The store refuses any one write of a controller, or several: the same is done once it takes them.

Writes are counted in a run that nothing disturbs, so a new one is covered by itself. The site is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulated import Site

from llm_pipeline.base.errors import Transient
from llm_pipeline.canary.record import Phase, take_over

pytestmark = pytest.mark.usefixtures("fast")

EVERY = [5, pytest.param(1, marks=pytest.mark.thorough)]

Refuses = Callable[[Site, int], Callable[[int], bool]]


def once(_: Site, number: int) -> Callable[[int], bool]:
    return lambda write: write == number


def for_a_while(_: Site, number: int) -> Callable[[int], bool]:
    return lambda write: number <= write < number + 5


def promote(site: Site) -> list[str]:
    return site.steps(20, 50, 100)


def refused_everywhere(
    root: Path, refuses: Refuses, every: int, act: Callable[[Site], object] = promote, **settings: Any
) -> Iterator[Site]:
    """A site for each write that `act` does, which will be refused."""
    dry = Site(root / "dry", **settings)
    act(dry)
    assert dry.writes > 10
    for number in range(1, dry.writes + 1, every):
        site = Site(root / str(number), **settings)
        site.refuses = refuses(site, number)
        yield site


def between_steps(error: Transient) -> bool:
    """Whether the store took not even the lease: there is no controller then, and the guard looks after the canary."""
    return "leases/canary" in str(error)


def tried_again(site: Site, act: Callable[[Site], list[str]] = promote) -> list[str]:
    """As Airflow does: a stage that failed for a reason that passes runs again."""
    for _ in range(10):
        try:
            take_over(site.store, "cpu")  # the lease that could not be given back has expired by then
            return act(site)
        except Transient as error:
            if not between_steps(error) and site.weights() != {"blue": 10_000}:
                raise
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("refuses", [once, for_a_while])
def test_a_store_that_takes_nothing_for_a_moment_ends_no_good_canary(tmp_path, refuses: Refuses, every: int) -> None:
    for site in refused_everywhere(tmp_path, refuses, every):
        assert tried_again(site)[-1] == "GO", site.effects
        assert (site.record().phase, site.weights()) == (Phase.PROMOTED, {"green": 9_800, "blue": 200}), site.effects
        shares = [state.weights.get("green", 0) for state in site.told]
        assert shares == sorted(shares), "traffic never goes back on its way up"
        assert site.kinds().count("promoted") == 1


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("refuses", [once, for_a_while])
def test_a_failing_canary_ends_on_stable_whichever_write_is_refused(tmp_path, refuses: Refuses, every: int) -> None:
    for site in refused_everywhere(tmp_path, refuses, every, lambda site: site.step(20), faulty=True):
        tried_again(site)
        assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000}), site.effects
        assert (site.running, site.lost) == ({"blue"}, 0)


def test_a_candidate_that_fails_while_the_store_is_full_is_rolled_back_for_that_once_it_has_room(tmp_path) -> None:
    site = Site(tmp_path)
    site.policy["minimum_bake_seconds"] = site.policy["maximum_bake_seconds"] = 60.0

    fails = {3: {"store_takes": False}, 5: {"faulty": True}, 10: {"store_takes": True}}
    site.at_looks({look: partial(vars(site).update, change) for look, change in fails.items()})
    judgement = site.step(20)
    assert judgement.verdict == "NO_GO"
    assert "fails request after request" in judgement.summary
    assert (site.weights(), site.record().phase, site.running) == ({"blue": 10_000}, Phase.ROLLED_BACK, {"blue"})
    assert [told.weights for told in site.told][-1] == {"blue": 10_000}


def test_a_store_that_is_full_for_a_while_ends_no_healthy_canary(tmp_path) -> None:
    site = Site(tmp_path)
    site.policy |= {"minimum_bake_seconds": 0.1, "maximum_bake_seconds": 60.0}  # ten looks at least
    changes = {2: {"store_takes": False}, 7: {"store_takes": True}}
    site.at_looks({look: partial(vars(site).update, change) for look, change in changes.items()})
    assert site.steps(20) == ["GO"]
    assert site.record().phase is Phase.PASSED
    assert site.weights() == {"blue": 8_000, "green": 2_000}
