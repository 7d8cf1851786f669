"""A controller that is frozen anywhere while one of another release gets some distance: who may write routes.

The site is in memory. The frozen one wakes up before it notices that its lease was taken.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from simulated import Killed, Site

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.canary.record import read_canary_record

pytestmark = pytest.mark.usefixtures("fast")


def frozen_at(root: Path, boundary: int, distance: int) -> tuple[Site, int]:
    """The site after r1's controller was frozen there while r2's got so far; and how many routes were told by then."""
    site = Site(root, freeze_at=boundary)
    told = []

    def meanwhile() -> None:
        site.buried()
        site.die_at = site.boundary + distance
        with contextlib.suppress(Killed):
            site.steps(20, release="r2")
        site.die_at, site.dead = None, False
        told.append(len(site.told))

    site.meanwhile = meanwhile
    with contextlib.suppress(PipelineError):
        site.step(20)
    return site, told[0]


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_stale_controller_writes_no_route_once_another_one_has_begun(tmp_path, every: int) -> None:
    dry = Site(tmp_path / "dry")
    dry.step(20)
    tried = 0
    for boundary in range(1, dry.boundary, every):
        for distance in range(9, 60, 5):
            site, told = frozen_at(tmp_path / f"{boundary}-{distance}", boundary, distance)
            if read_canary_record(site.store, "r2", "cpu") is None:
                continue
            tried += 1
            late = [state for state in site.told[told:] if state.owner.startswith("r1@")]
            assert late == [], (boundary, distance, site.effects)
    assert tried > 50 / every
