"""The store refuses any one write of a controller, or all from there on: users first, and it is recorded afterwards.

Writes are counted in a run that nothing disturbs, so a new one is covered by itself. The site is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated import POLICY, Site
from test_guard import LATER, guard

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import Transient
from llm_pipeline.canary.record import Phase, read_canary_record, take_over
from llm_pipeline.operations.approval import answer

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


@pytest.mark.thorough
@pytest.mark.parametrize("refuses", [once, for_a_while])
def test_nor_one_that_asks_a_person(tmp_path, refuses: Refuses) -> None:
    changes = {"approve_before_percent": [100], "steps_percent": [20, 100]}

    def ask_and_go_on(site: Site) -> list[str]:
        if site.steps(20, 100)[-1] != "GO":
            write = LocalStore(site.store.uri)  # the person's own
            answer(write, "r1", "cpu", 100, approved=True, by="alice")
        return site.steps(100)

    for site in refused_everywhere(tmp_path, refuses, 1, ask_and_go_on, policy={**POLICY, **changes}):
        assert tried_again(site, ask_and_go_on) == ["GO"], site.effects
        assert (site.record().phase, site.weights()) == (Phase.PROMOTED, {"green": 9_800, "blue": 200}), site.effects
        assert site.kinds().count("approval asked") == 1


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("refuses", [once, for_a_while])
def test_a_failing_canary_ends_on_stable_whichever_write_is_refused(tmp_path, refuses: Refuses, every: int) -> None:
    for site in refused_everywhere(tmp_path, refuses, every, lambda site: site.step(20), faulty=True):
        tried_again(site)
        assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000}), site.effects
        assert (site.running, site.lost) == ({"blue"}, 0)


@pytest.mark.parametrize("every", EVERY)
def test_a_candidate_that_fails_once_the_store_takes_nothing_any_more_keeps_no_traffic(tmp_path, every: int) -> None:
    def from_then_on(site: Site, number: int) -> Callable[[int], bool]:
        def refuses(write: int) -> bool:
            site.faulty |= write >= number
            return write >= number

        return refuses

    by_itself = 0
    for site in refused_everywhere(tmp_path, from_then_on, every):
        try:
            promote(site)
        except Transient as error:
            if between_steps(error):
                guard(site, LATER)
            elif site.told:
                by_itself += 1
        record = read_canary_record(site.store, "r1", "cpu")
        if record is not None and record.phase is Phase.PROMOTED:
            continue
        assert (site.weights(), site.lost) == ({"blue": 10_000}, 0), site.effects
        site.refuses = once(site, 0)
        site.buried()
        assert promote(site)[-1] != "GO"
        assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000}), site.effects
        assert site.running == {"blue"}
    assert by_itself > 5 / every


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_an_older_release_loses_its_traffic_though_its_end_cannot_be_recorded(tmp_path, taken: int) -> None:
    """The newer release's controller gets its lease, and a few more writes or none."""
    site = Site(tmp_path)
    assert site.steps(20) == ["GO"]
    taken += site.writes
    site.refuses = lambda write: write > taken
    with pytest.raises(Transient, match="no space left"):
        site.step(20, release="r2")
    assert (site.weights(), site.lost) == ({"blue": 10_000}, 0), site.effects
    site.refuses = once(site, 0)
    assert site.buried().steps(20, release="r2") == ["GO"]
    assert (site.record().phase, site.record("r2").phase) == (Phase.ROLLED_BACK, Phase.PASSED)
    assert site.weights() == {"blue": 8_000, "green": 2_000}
