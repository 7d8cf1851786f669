"""The controller over a source of counts instead of a log: what it concludes, and what it does when told wrong."""

from __future__ import annotations

import time

import pytest
from simulated import Site

from llm_pipeline.canary.metrics import ArmWindow, Histogram, MetricsWindow, SourceDown
from llm_pipeline.canary.record import PauseReason
from llm_pipeline.canary.router import ALL, SlotName
from llm_pipeline.canary.traffic import CountedTraffic

pytestmark = pytest.mark.usefixtures("fast")


class Counts:
    """Two hundred requests a window, as the weights are."""

    def __init__(self, site: Site) -> None:
        self.site, self.trouble = site, None
        self.trouble: SourceDown | None = None

    def begin(self, seconds_ago: float = 0.0) -> float:
        return time.time() - seconds_ago

    def window(self, since: float) -> MetricsWindow:
        del since
        if self.trouble is not None:
            raise self.trouble
        arms: dict[SlotName, ArmWindow] = {
            slot: self._arm(slot, 200 * weight // ALL) for slot, weight in self.site.router.state.weights.items()
        }
        return arms, time.time()

    def _arm(self, slot: SlotName, requests: int) -> ArmWindow:
        errors = requests if slot == "green" and self.site.faulty else 0
        fast = Histogram(edges=(10.0, 20.0, 50.0, 100.0, 500.0), counts=(requests,) * 5, total=requests)
        return ArmWindow(requests=requests, errors=errors, end_to_end=fast)


@pytest.fixture
def counted(tmp_path) -> tuple[Site, Counts]:
    site = Site(tmp_path)
    source = Counts(site)
    site.traffic = CountedTraffic(source)
    return site, source


def test_a_canary_is_promoted_and_one_that_fails_is_rolled_back_by_counts_alone(counted) -> None:
    site, _ = counted
    assert site.steps(20, 50) == ["GO", "GO"]
    site.faulty = True
    assert site.step(100).verdict == "NO_GO"
    assert site.weights() == {"blue": 10_000}


@pytest.mark.parametrize("trouble", [SourceDown("nothing there"), SourceDown("an arm has another name")])
def test_a_source_that_is_down_or_names_an_arm_wrongly_pauses_in_mid_canary_and_goes_on_afterwards(
    counted, trouble: SourceDown
) -> None:
    site, source = counted
    assert site.step(20).verdict == "GO"
    source.trouble = trouble
    judgement = site.step(50)
    assert judgement.verdict == "INCONCLUSIVE"
    assert trouble.message in judgement.evidence[0].detail
    assert site.record().pause.reason is PauseReason.NO_SOURCE
    assert site.weights() == {"blue": 5_000, "green": 5_000}
    source.trouble = None
    assert site.step(50).verdict == "GO"


def test_a_source_that_was_never_there_shifts_nothing(counted) -> None:
    site, source = counted
    source.trouble = SourceDown("nothing there")
    assert site.step(20).verdict == "INCONCLUSIVE"
    assert all(state.weights.get("green", 0) == 0 for state in site.told)
