"""The store takes nothing for a while; what was found meanwhile is done once it does. The site is in memory.

Writes are counted in a run that nothing disturbs, so a new one is covered by itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulated import Site

from llm_pipeline.base.errors import Transient
from llm_pipeline.canary.record import Phase, take_over

pytestmark = pytest.mark.usefixtures("fast")


def promote(site: Site) -> list[str]:
    return site.steps(20, 50, 100)


def refusing(site: Site, first: int, count: int) -> list[str]:
    """From now on the store refuses so many writes, from the first of them on; returns a list of all to come."""
    write, names = site.store.write_document, list[str]()

    def counted(name: str, *arguments: Any) -> str:
        names.append(name)
        if first <= len(names) < first + count:
            raise Transient(f"cannot write {name}: no space left on device")
        return write(name, *arguments)

    site.store.write_document = counted  # type: ignore[method-assign]
    return names


def tried_again(site: Site) -> list[str]:
    """As Airflow does: a stage that failed for a reason that passes runs again."""
    for _ in range(10):
        try:
            take_over(site.store, "cpu")  # the lease that could not be given back has expired by then
            return promote(site)
        except Transient as error:
            if "leases/canary" not in str(error) and site.weights() != {"blue": 10_000}:
                raise  # a controller that has begun holds on to it
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("faulty", [False, True])
def test_writes_that_are_refused_anywhere_end_no_good_canary_and_save_no_bad_one(
    tmp_path: Path, every: int, count: int, faulty: bool
) -> None:
    dry = Site(tmp_path / "dry", faulty=faulty)
    writes = refusing(dry, 1, 0)
    promote(dry)
    assert len(writes) > 10
    for first in range(1, len(writes) + 1, every):
        site = Site(tmp_path / str(first), faulty=faulty)
        refusing(site, first, count)
        verdict = tried_again(site)[-1]
        shares = [state.weights.get("green", 0) for state in site.told]
        if faulty:
            assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000}), site.effects
            assert (verdict, site.running, site.lost) == ("NO_GO", {"blue"}, 0), site.effects
        else:
            assert (verdict, site.record().phase) == ("GO", Phase.PROMOTED), site.effects
            assert (site.weights(), shares) == ({"green": 9_800, "blue": 200}, sorted(shares)), site.effects


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
