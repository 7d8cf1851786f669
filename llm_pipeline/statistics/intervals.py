"""Quantiles, bounds of a mean, and the exact bound of a proportion; pure functions of counts and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from statistics import NormalDist, fmean, stdev

_MOST_ALIKE = 0.8


def critical_value(confidence: float, degrees: float = math.inf) -> float:
    """Student's quantile, or the normal one for infinite degrees of freedom."""
    if math.isinf(degrees):
        return NormalDist().inv_cdf(confidence)
    from scipy import special

    return float(special.stdtrit(degrees, confidence))


def bounds_of_mean(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """The mean of one value or more, and its two one-sided bounds by Student's t."""
    mean, count = fmean(values), len(values)
    reach = critical_value(confidence, count - 1) * stdev(values) / math.sqrt(count) if count > 1 else math.inf
    return mean, mean - reach, mean + reach


def deviation_in_turn(values: Sequence[float]) -> float:
    """The standard deviation of two values or more, as large as their mean's error asks for where neighbours are alike.

    It is that of a first-order autoregression, s sqrt((1 + r) / (1 - r)) for the correlation r of each value with the
    one before, taken as 0 at least and 0.8 at most: a dozen values tell no more about r.
    """
    mean, deviation = fmean(values), stdev(values)
    if not deviation:
        return 0.0
    apart = [value - mean for value in values]
    alike = sum(map(mul, apart, apart[1:])) / sum(map(mul, apart, apart))
    alike = min(max(alike, 0.0), _MOST_ALIKE)
    return deviation * math.sqrt((1.0 + alike) / (1.0 - alike))


def more_than(share: float, events: int, trials: int, confidence: float) -> bool:
    """Whether so many events show more than a share, each by itself; any event does where the share is 0."""
    chance = critical_value(confidence) * math.sqrt(share * (1.0 - share) / max(1, trials))
    return events > trials * (share + chance)


def clopper_pearson_upper(events: float, trials: float, confidence: float) -> float:
    """Exact one-sided upper bound of a proportion (Clopper and Pearson 1934); events may be fractional."""
    from scipy import special

    return 1.0 if events >= trials else float(special.betaincinv(events + 1, trials - events, confidence))
