"""The step of 100 %: stable keeps a share to compare with, and the router is kept alive. The site is in memory."""

from __future__ import annotations

import pytest
from simulated import LONGER, Site

from llm_pipeline.config.policy import CanaryPolicy

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def test_a_candidate_that_turns_slow_at_the_last_step_is_compared_with_stable_and_rolled_back(site) -> None:
    site.policy |= LONGER
    site.requests_per_look = 2_000
    assert site.steps(20, 50) == ["GO", "GO"]
    site.slow = True
    assert site.steps(100) == ["NO_GO"]
    assert site.weights() == {"blue": 10_000}


def test_a_step_close_to_all_leaves_stable_its_share_too() -> None:
    policy = CanaryPolicy(steps_percent=(50, 99, 100))
    assert [policy.share_at(percent) for percent in policy.steps_percent] == [0.5, 0.98, 0.98]


@pytest.mark.parametrize("percent", [20, 50, 100])
def test_a_router_that_ended_is_started_by_whoever_owns_the_canary(site, percent) -> None:
    before = [step for step in (20, 50, 100) if step < percent]
    assert site.steps(*before) == ["GO"] * len(before)
    site.router_ended = True
    assert site.steps(percent) == ["GO"]
    assert not site.router_ended
    assert site.kinds().count("router revived") == 1


def test_a_router_that_does_not_start_passes_no_step(site) -> None:
    """Its users are refused, and nothing is seen of them."""
    assert site.steps(20, 50) == ["GO", "GO"]
    site.router_ended, site.router_starts = True, False
    assert site.step(100).verdict != "GO"
