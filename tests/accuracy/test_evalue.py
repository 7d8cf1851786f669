"""Bets against a loss: fair at the limit, right at any look."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from llm_pipeline.statistics.evalue import BETTING_TEST, log_mixture, log_wealth, wealth_needed
from llm_pipeline.statistics.losses import LossSample


def sample(lost: int, gained: int, pairs: int) -> LossSample:
    return LossSample(np.repeat([1.0, -1.0, 0.0], [lost, gained, pairs - lost - gained]))


@pytest.mark.parametrize("limit", [0.01, 0.3, -0.05])
def test_at_the_limit_the_expected_wealth_is_what_one_began_with(limit: float) -> None:
    """Over all outcomes of twelve items, exactly."""
    shares = ((0.4 + limit) / 2, (0.4 - limit) / 2)
    outcomes = [(a, b) for a in range(13) for b in range(13 - a)]
    counts = np.array([(a, b, 12 - a - b) for a, b in outcomes])
    chances = stats.multinomial.pmf(counts, 12, (*shares, 0.6))
    wealth = [math.exp(log_wealth(sample(a, b, 12), limit)) for a, b in outcomes]
    assert float(chances @ np.array(wealth)) == pytest.approx(1.0)


def test_many_samples_at_once_are_the_same_as_one_by_one() -> None:
    counts = np.array([[3, 1, 500], [0, 0, 900], [40, 10, 200]])
    together = log_mixture((1 - np.array([1.0, -1.0, 0.0])) / (1 - 0.02) - 1, counts)
    alone = [log_wealth(sample(a, b, a + b + c), 0.02) for a, b, c in counts]
    assert together.tolist() == pytest.approx(alone)


def test_the_order_of_items_does_not_matter() -> None:
    losses = np.random.default_rng(1).uniform(-1, 1, 300)
    assert log_wealth(LossSample(losses), 0.1) == pytest.approx(log_wealth(LossSample(losses[::-1]), 0.1))


def test_looking_after_every_item_passes_a_bad_model_no_more_often_than_stated() -> None:
    random = np.random.default_rng(5)
    steps = random.choice([1.0, -1.0, 0.0], p=(0.055, 0.045, 0.9), size=(300, 1500))
    counts = np.stack([(steps == kind).cumsum(axis=1)[:, ::10] for kind in (1.0, -1.0, 0.0)], axis=-1)
    wealth = log_mixture((1 - np.array([1.0, -1.0, 0.0])) / (1 - 0.01) - 1, counts)
    assert (wealth.max(axis=1) >= wealth_needed(0.95)).mean() <= 0.05


def test_the_bound_is_where_the_bet_has_won_enough() -> None:
    data = sample(20, 18, 4000)
    bounds = BETTING_TEST.bounds(data, 0.95)
    assert bounds.lower < data.mean < bounds.upper < 0.02
    assert log_wealth(data, bounds.upper) == pytest.approx(wealth_needed(0.95), abs=1e-6)
    assert BETTING_TEST.p_value(data, bounds.lower) == pytest.approx(0.05, abs=1e-6)


def test_graded_losses_are_bet_on_as_they_are() -> None:
    losses = np.random.default_rng(2).normal(0.0, 0.05, 2000).clip(-1, 1)
    assert BETTING_TEST.bounds(LossSample(losses, graded=True), 0.95).upper < 0.01


def test_a_cluster_is_one_bet_however_alike_its_items_are() -> None:
    """Twenty clusters that answer as one are no better evidence than twenty items."""
    groups = np.repeat(np.arange(20), 50)
    losses = np.where(groups < 10, 1.0, -1.0)
    clustered = log_wealth(LossSample(losses, groups), -0.5)
    assert clustered == pytest.approx(log_wealth(sample(10, 10, 20), -0.5))
