"""A candidate that somebody else serves is looked at before a step passes: it has to be the release still."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated import CANDIDATE, Site, Slots

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import ALL, SlotName

pytestmark = pytest.mark.usefixtures("fast")


class WatchedSlots(Slots):
    """Slots whose candidate is another one from the given look on."""

    def __init__(self, site: Site, another_from: int) -> None:
        super().__init__(site)
        self.another_from, self.looks = another_from, 0

    def differs(self, slot: SlotName, repository: ArtifactRef) -> str | None:
        assert (slot, repository) == ("green", CANDIDATE)
        self.looks += 1
        return "it gives 0 of 24 golden answers" if self.looks >= self.another_from else None


def test_the_release_is_promoted_and_was_looked_at_once_a_step(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slots = slots = WatchedSlots(site, 9)
    assert site.steps(20, 50, 100) == ["GO", "GO", "GO"]
    assert slots.looks == 3


@pytest.mark.parametrize("step", [1, 3])
def test_another_model_in_the_slot_on_trial_is_rolled_back(tmp_path: Path, step: int) -> None:
    site = Site(tmp_path)
    site.slots = WatchedSlots(site, step)
    assert site.steps(20, 50, 100) == ["GO"] * (step - 1) + ["NO_GO"]
    record = site.record()
    assert record.phase is Phase.ROLLED_BACK
    assert record.judgement is not None
    assert "does not serve this release" in record.judgement.summary
    assert "0 of 24 golden answers" in record.judgement.summary
    assert site.weights() == {"blue": ALL}
