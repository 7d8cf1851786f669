"""A rollback that was asked for without a name, frozen, and awake again once a newer release serves: it leaves that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_one_way_back import Served, in_the_middle, settled

from llm_pipeline.canary.record import take_over
from llm_pipeline.operations import rollback as way_back

pytestmark = pytest.mark.usefixtures("fast")


@pytest.mark.parametrize("reach", [settled, in_the_middle])
@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.thorough)])
def test_frozen_at_any_boundary_it_does_not_take_back_what_nobody_had_seen_when_it_was_asked_for(
    tmp_path: Path, reach: Callable[[Served], None], every: int
) -> None:
    dry = Served(tmp_path / "dry")
    reach(dry)
    begun = dry.boundary
    dry.roll_back()
    length = dry.boundary - begun
    assert length > 10
    for boundary in range(1, length + 1, every):
        site = Served(tmp_path / str(boundary))
        reach(site)
        woke: list[int] = []

        def meanwhile(site: Served = site, woke: list[int] = woke) -> None:
            """Its lease expires, the guard carries its way back out, and a newer release goes into production."""
            take_over(site.store, "cpu")
            way_back.carry_on(site.place)
            site.release("r5")
            woke.append(len(site.effects))

        site.freeze_at, site.meanwhile = site.boundary + boundary, meanwhile
        site.roll_back()
        assert site.serving() == "r5", site.effects
        after = [effect for effect in site.effects[woke[0] :] if effect.startswith(("start", "stop", "route"))]
        assert after == [], site.effects
