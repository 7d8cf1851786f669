"""Quantiles, and the exact bound of a proportion; pure functions of counts and numbers."""

from __future__ import annotations

import math
from statistics import NormalDist


def critical_value(confidence: float, degrees: float = math.inf) -> float:
    """Student's quantile, or the normal one for infinite degrees of freedom."""
    if math.isinf(degrees):
        return NormalDist().inv_cdf(confidence)
    from scipy import special

    return float(special.stdtrit(degrees, confidence))


def clopper_pearson_upper(events: float, trials: float, confidence: float) -> float:
    """Exact one-sided upper bound of a proportion (Clopper and Pearson 1934); events may be fractional."""
    from scipy import special

    return 1.0 if events >= trials else float(special.betaincinv(events + 1, trials - events, confidence))
