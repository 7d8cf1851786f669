"""How many requests a claim needs, as independent ones and as those of a queue."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.design_effect import autocorrelation_time, design_effect, slowdown
from llm_pipeline.loadtest.sample_size import needed_requests, require_enough, sample_size, share_bounds

POLICY = LoadTestPolicy(
    service_level=ServiceLevel(first_token_milliseconds=100), attainment=0.99, confidence=0.99, search=None,
    minimum_requests=10,
)  # fmt: skip


def workload(**changes: object) -> Workload:
    return Workload.model_validate({"prompts": "p.jsonl", "rate_per_second": 10, "duration_seconds": 9.5, **changes})


@pytest.mark.parametrize(
    ("attainment", "needed"),
    [(0.99, (459, 662, 1307, 2010)), (0.95, (90, 130, 259, 398)), (0.9, (44, 64, 127, 197))],
)
def test_mlperfs_early_stopping_needs_as_many(attainment: float, needed: tuple[int, ...]):
    assert tuple(needed_requests(attainment, 0.99, misses=misses) for misses in (0, 1, 5, 10)) == needed


@pytest.mark.parametrize("misses", [0, 3, 17])
def test_one_request_fewer_does_not_show_it(misses: int):
    needed = needed_requests(0.95, 0.95, misses=misses)
    assert share_bounds(needed - misses, needed, 0.95).lower >= 0.95
    assert share_bounds(needed - 1 - misses, needed - 1, 0.95).lower < 0.95


def test_looks_cost_requests():
    assert [needed_requests(0.99, 0.99, looks=looks) for looks in (1, 3, 9)] == [459, 568, 677]


def test_requests_that_are_alike_count_for_fewer():
    independent, alike = share_bounds(990, 1000, 0.95), share_bounds(990, 1000, 0.95, design_effect=10.0)
    assert alike.lower < independent.lower
    assert alike.upper > independent.upper
    assert (independent.worth, alike.worth) == (1000, pytest.approx(100, rel=0.05))


def test_a_load_test_that_never_can_is_refused_with_what_it_needs():
    require_enough(workload(), POLICY)
    with pytest.raises(ConfigError, match=r"540 requests can never show 99 % .*: 568 are needed") as told:
        require_enough(workload(duration_seconds=9), POLICY)
    assert "duration_seconds of 10 or more" in str(told.value)


def test_users_who_leave_are_not_counted():
    with pytest.raises(ConfigError):
        require_enough(workload(cancelled_share=0.1), POLICY)


def test_a_tolerance_of_every_failure_needs_no_further_request():
    tolerant = POLICY.model_copy(update={"maximum_error_fraction": 1.0})
    assert sample_size(workload(), tolerant).needed == sample_size(workload(), POLICY).needed


def test_the_least_number_of_requests_is_needed_too():
    with pytest.raises(ConfigError, match="1000 are needed"):
        require_enough(workload(), POLICY.model_copy(update={"minimum_requests": 1000}))


def test_misses_cost_requests():
    size = sample_size(workload(), POLICY)
    misses = round(size.needed_with_misses * 0.01 / 2)
    assert size.needed_with_misses >= needed_requests(0.99, 0.99, misses=misses)


def waves(requests: int, length: int, share: float) -> NDArray[np.float64]:
    """Latency by limit: a share of spells of so many requests is late."""
    random = np.random.default_rng(4)
    late = random.random(requests // length) < share
    return np.repeat(np.where(late, 1.5, 0.1), length)


@pytest.mark.parametrize("length", [1, 10, 40])
def test_the_design_effect_of_spells_is_their_length(length: int):
    effect = design_effect([waves(12_000, length, 0.1)] * 2, 0.95)
    assert length <= effect <= 1.6 * length


def test_batches_of_many_requests_tell_the_same():
    few, many = (design_effect([waves(count, 40, 0.1)], 0.95) for count in (48_000, 480_000))
    assert many == pytest.approx(few, rel=0.15)


@pytest.mark.parametrize("of_the_limit", [0.9, 0.1])
def test_the_slowest_requests_tell_how_misses_would_cluster(of_the_limit: float):
    below = of_the_limit / 1.5 * waves(4000, 20, 0.04)  # and never above it
    assert design_effect([below], 0.95) > 15


def test_windows_that_differ_are_worth_little_more_than_a_request_each():
    fine, bad = np.full(300, 0.1), np.where(np.random.default_rng(1).random(300) < 0.5, 1.5, 0.1)
    assert design_effect([fine, bad, fine], 0.95) > 20 * design_effect([bad, bad, bad], 0.95)


def test_other_windows_may_be_slower_than_those_that_were_seen():
    draws = np.random.default_rng(2)
    alike = [draws.lognormal(0.0, 0.5, 400) for _ in range(5)]
    apart = [window * factor for window, factor in zip(alike, (0.7, 0.9, 1.0, 1.2, 1.4), strict=True)]
    assert 1.0 < slowdown(alike, 0.95) < 1.25 < slowdown(apart, 0.95)
    assert slowdown(apart[:2], 0.95) > slowdown(apart, 0.95), "two windows tell less of others than five"
    assert slowdown(alike[:1], 0.95) == slowdown([], 0.95) == slowdown([np.full(9, np.inf)] * 3, 0.95) == 1.0


def test_windows_that_resemble_the_one_before_tell_less_of_others():
    """A neighbour's noise that lasts for several windows."""
    draws = np.random.default_rng(3)
    windows = [factor * draws.lognormal(0.0, 0.5, 400) for factor in (1.0, 1.02, 1.05, 1.3, 1.33, 1.28)]
    in_turn = [windows[place] for place in (0, 3, 1, 4, 2, 5)]
    assert slowdown(windows, 0.95) > 1.15 * slowdown(in_turn, 0.95)


def test_what_is_always_the_same_is_not_correlated():
    assert autocorrelation_time([np.zeros(100, bool)]) == 1.0
    assert autocorrelation_time([np.ones(100, bool)]) == 1.0
    assert autocorrelation_time([np.ones(1, bool), np.zeros(1, bool)]) == 1.0
    assert design_effect([np.full(50, np.inf)], 0.95) == 1.0


def test_regular_misses_are_no_spells():
    every_tenth = np.where(np.arange(3000) % 10 == 0, 1.5, 0.1)
    assert design_effect([every_tenth], 0.95) < 1.2
