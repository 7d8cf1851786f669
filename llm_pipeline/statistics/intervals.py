"""Quantiles, bounds of a mean, and the exact bound of a proportion; pure functions of counts and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev


def critical_value(confidence: float, degrees: float = math.inf) -> float:
    """Student's quantile, or the normal one for infinite degrees of freedom."""
    if math.isinf(degrees):
        return NormalDist().inv_cdf(confidence)
    from scipy import special

    return float(special.stdtrit(degrees, confidence))


def bounds_of_mean(values: Sequence[float], confidence: float, least: float = 0.0) -> tuple[float, float, float]:
    """The mean of one value or more, and its two one-sided bounds by Student's t, at least so far away."""
    mean, count = fmean(values), len(values)
    reach = critical_value(confidence, count - 1) * stdev(values) / math.sqrt(count) if count > 1 else math.inf
    reach = max(reach, least)
    return mean, mean - reach, mean + reach


def more_than(share: float, events: int, trials: int, confidence: float) -> bool:
    """Whether so many events show more than a share, each by itself; any event does where the share is 0."""
    chance = critical_value(confidence) * math.sqrt(share * (1.0 - share) / max(1, trials))
    return events > trials * (share + chance)


def clopper_pearson_upper(events: float, trials: float, confidence: float) -> float:
    """Exact one-sided upper bound of a proportion (Clopper and Pearson 1934); events may be fractional."""
    from scipy import special

    return 1.0 if events >= trials else float(special.betaincinv(events + 1, trials - events, confidence))
