"""The bounds behind the accuracy gate: against published values, against the truth in simulation, at their edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from llm_pipeline.statistics.intervals import (
    FEW_CHANGES,
    Bounds,
    clopper_pearson_upper,
    items_to_decide,
    mean_bounds,
    score_lower,
    score_upper,
    tango_statistic,
    wilson_bounds,
)
from llm_pipeline.statistics.losses import LossSample
from llm_pipeline.statistics.score_test import SCORE_TEST

Z95 = float(stats.norm.ppf(0.95))


def bounds_of_counts(lost: int, gained: int, pairs: int, confidence: float) -> Bounds:
    """Bounds of right and wrong answers."""
    return SCORE_TEST.bounds(LossSample(np.repeat([1.0, -1.0, 0.0], [lost, gained, pairs - lost - gained])), confidence)


def bounds_of(losses: Sequence[float], confidence: float) -> Bounds:
    """Bounds of graded losses."""
    return SCORE_TEST.bounds(LossSample(np.asarray(losses), graded=True), confidence)


@pytest.mark.parametrize(
    ("lost", "gained", "pairs", "confidence", "lower", "upper"),
    [
        # R, PropCIs::scoreci.mp(25, 28, 618, 0.90)
        (28, 25, 618, 0.95, -0.0148, 0.0247),
        # Airway reactivity before and after transplantation (Fagerland and others 2014), R's ratesci and PropCIs
        (7, 1, 21, 0.975, 0.026, 0.517),
        # 50 against 31 discordant of 591, R's PropCIs as published with a mentoring study
        (50, 31, 591, 0.95, 0.0072, 0.0577),
    ],
)
def test_bounds_agree_with_published_tango_intervals(  # noqa: PLR0917
    lost: int, gained: int, pairs: int, confidence: float, lower: float, upper: float
) -> None:
    bounds = bounds_of_counts(lost, gained, pairs, confidence)
    digits = len(str(upper).split(".")[1])
    assert (round(bounds.lower, digits), round(bounds.upper, digits)) == (lower, upper)


def test_no_flips_still_leave_a_loss_that_cannot_be_excluded() -> None:
    bounds = bounds_of_counts(0, 0, 500, 0.95)
    assert bounds.upper == pytest.approx(1 - 0.05 ** (1 / 500))  # exact: the chance of no loss at all is 5 %
    assert bounds.lower == -bounds.upper


@pytest.mark.parametrize("lost", [0, 1, 3, 10])
def test_with_nothing_gained_the_bound_is_the_exact_one(lost: int) -> None:
    upper = score_upper(lost, 0, 400, 0.95)
    assert stats.binom.cdf(lost, 400, upper) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("lost", "gained", "pairs"), [(1, 0, 1), (0, 1, 1), (5, 0, 5), (0, 5, 5), (4, 1, 5), (1, 4, 5)]
)
def test_bounds_exist_and_are_ordered_in_the_corners(lost: int, gained: int, pairs: int) -> None:
    bounds = bounds_of_counts(lost, gained, pairs, 0.95)
    assert -1.0 <= bounds.lower <= bounds.estimate <= bounds.upper <= 1.0


@pytest.mark.parametrize(("events", "trials", "upper"), [(0, 100, 0.0362), (10, 100, 0.1762), (1, 20, 0.2487)])
def test_exact_bounds_are_clopper_and_pearsons_published_ones(events: int, trials: int, upper: float) -> None:
    assert round(clopper_pearson_upper(events, trials, 0.975), 4) == upper


@pytest.mark.parametrize("pairs", [500, 1750])
@pytest.mark.parametrize("flips", [0.0101, 0.015, 0.03])
def test_false_alarms_at_the_margin_stay_near_the_stated_five_percent(pairs: int, flips: float) -> None:
    """Exactly; by Tango's score alone 6.7 % of 500 items at 1 % flips."""
    shares = ((flips + 0.01) / 2, (flips - 0.01) / 2)
    alarm = 0.0
    for gained in range(int(stats.binom.ppf(1 - 1e-7, pairs, shares[1])) + 2):
        least = next(n for n in range(gained, pairs) if score_lower(n, gained, pairs, 0.95) > 0.01)
        later = stats.binom.sf(least - 1, pairs - gained, shares[0] / (1 - shares[1]))
        alarm += stats.binom.pmf(gained, pairs, shares[1]) * later
    assert alarm <= 0.056


def _false_pass(pairs: int, flips: float, margin: float) -> float:
    """Exact chance that the upper bound falls below the margin when the true loss equals it."""
    lost_share, gained_share = (flips + margin) / 2, (flips - margin) / 2
    chance = 0.0
    for gained in range(int(stats.binom.ppf(1 - 1e-8, pairs, gained_share)) + 2):
        weight = stats.binom.pmf(gained, pairs, gained_share)
        passing = [lost for lost in (_most_lost_that_passes(gained, pairs, margin),) if lost >= 0]
        if weight > 1e-9 and passing:
            chance += weight * stats.binom.cdf(passing[0], pairs - gained, lost_share / (1 - gained_share))
    return float(chance)


def _most_lost_that_passes(gained: int, pairs: int, margin: float) -> int:
    def passes(lost: int) -> bool:
        if gained == 0:
            return clopper_pearson_upper(lost, pairs, 0.95) < margin
        return tango_statistic(lost, gained, pairs, margin) < -Z95

    low, high = -1, pairs - gained + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


@pytest.mark.parametrize("pairs", [500, 1000, 1750])
@pytest.mark.parametrize("flips", [0.0101, 0.012, 0.02, 0.03, 0.05, 0.2])
def test_false_passes_at_the_margin_stay_at_the_stated_five_percent(pairs: int, flips: float) -> None:
    assert _false_pass(pairs, flips, 0.01) <= 0.052


def test_graded_bounds_cover_the_truth_as_often_as_stated() -> None:
    random = np.random.default_rng(7)
    losses = random.normal(0.01, 0.1, size=(1500, 600)).clip(-1, 1)
    bounds = [bounds_of(row.tolist(), 0.95) for row in losses]
    assert 0.935 <= np.mean([bound.upper >= 0.01 for bound in bounds]) <= 0.965
    assert 0.935 <= np.mean([bound.lower <= 0.01 for bound in bounds]) <= 0.965


def test_graded_bounds_stay_honest_when_hardly_an_item_changed() -> None:
    """Student's t on mostly equal pairs would say that 600 equal scores exclude any loss at all."""
    unchanged = bounds_of([0.0] * 600, 0.95)
    assert unchanged.upper == clopper_pearson_upper(0, 600, 0.95) > 0.0
    few = bounds_of([0.3] * (FEW_CHANGES - 1) + [0.0] * 600, 0.95)
    assert few.upper == clopper_pearson_upper(FEW_CHANGES - 1, 600 + FEW_CHANGES - 1, 0.95)


def test_an_accuracy_of_right_and_wrong_answers_has_wilson_bounds() -> None:
    assert mean_bounds([1.0] * 80 + [0.0] * 20, 0.975) == wilson_bounds(80, 100, 0.975)
    bounds = wilson_bounds(80, 100, 0.975)
    assert (round(bounds.lower, 4), round(bounds.upper, 4)) == (0.7112, 0.8666)


def test_items_to_decide_is_the_textbook_number() -> None:
    assert items_to_decide(0.05, 0.01, 0.95) == pytest.approx(8.564 * 0.05 / 0.01**2, rel=1e-3)
    assert items_to_decide(0.05, 0.0, 0.95) is None
