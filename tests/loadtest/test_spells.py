from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from llm_pipeline.loadtest.design_effect import autocorrelation_time, upper_share, waiting_effect, without_late


@pytest.mark.parametrize(("effect", "share"), [(9.0, 0.05), (31.0, 0.05), (31.0, 0.01)])
def test_the_bound_lies_below_the_truth_as_often_as_the_confidence_leaves(effect: float, share: float):
    requests, draws = 9600, np.random.default_rng(8)
    length = (effect + 1.0) / 2.0
    spells = draws.poisson(requests * share / length, 4000)
    late = np.array([draws.geometric(1.0 / length, count).sum() for count in spells])
    assert late.var() / late.mean() == pytest.approx(effect, rel=0.1)
    bounds = {count: upper_share(count, requests, 0.95, effect) for count in np.unique(late).tolist()}
    wrong = np.mean([bounds[count] < share for count in late.tolist()])
    assert 0.02 < wrong <= 0.06, "discrete counts are bounded no closer than one of them"


@pytest.mark.parametrize("effect", [1.0, 9.0, 119.0])
def test_as_many_requests_as_are_needed_show_it_when_none_is_late(effect: float):
    needed = math.ceil(without_late(0.05, 0.95, effect))
    assert upper_share(0, needed, 0.95, effect) <= 0.05 < upper_share(0, needed - 2, 0.95, effect)


def queue(requests: int, draws: np.random.Generator, servers: int = 4, load: float = 0.7) -> NDArray[np.float64]:
    """Waits of requests in one queue (D. V. Lindley; J. Kiefer and J. Wolfowitz), after a warm-up."""
    free, now, waits = np.zeros(servers), 0.0, []
    for place in range(requests + 1000):
        now += draws.exponential(1.0 / (servers * load))
        started = max(now, free.min())
        free[free.argmin()] = started + draws.exponential(1.0)
        if place >= 1000:
            waits.append(started - now)
    return 0.05 + np.array(waits)


def test_a_queue_is_alike_by_more_than_its_own_few_slowest_tell():
    """The slowest twentieth of M/M/4 at 70 % has a design effect of about 30, which 2,400 requests seldom show."""
    draws = np.random.default_rng(6)
    found = [waiting_effect([queue(480, draws) for _ in range(5)], 0.95) for _ in range(8)]
    assert 20.0 < float(np.median(found)) < 70.0
    assert min(found) > 10.0


def test_a_queue_that_seldom_fills_may_be_far_more_alike_beyond_what_was_seen():
    """One request in twenty waits, in spells of 20, and the others know nothing of one another."""
    draws = np.random.default_rng(9)
    seldom = np.where(np.arange(2400) % 400 < 20, 0.2, 0.01) * draws.lognormal(0.0, 0.2, 2400)
    own = autocorrelation_time([seldom > np.quantile(seldom, 0.95)])
    assert waiting_effect([seldom], 0.95) > 2.0 * own
