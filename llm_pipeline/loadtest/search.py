"""The search for the highest rate at which the service level is met. Pure: the caller measures.

Short probes are unreliable: they find the rate to confirm, never a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import RateSearch
from llm_pipeline.loadtest.outcome import RatePoint

_STEP = 2.0
_LOWEST_SHARE = 1 / 16

Probe = Callable[[float], RatePoint]


def search_highest_rate(first: RatePoint, most: float, search: RateSearch, probe: Probe) -> tuple[RatePoint, ...]:
    """Double or halve the rate from the first point until the limit is bracketed, then bisect geometrically.

    Args:
        first: What was measured at the first rate.
        most: No rate above it is tried.
        search: When to stop.
        probe: Measures one rate.

    Returns:
        All points, the first one included, by rising rate.
    """
    points, lowest = [first], first.rate_per_second * _LOWEST_SHARE
    low, high = (first.rate_per_second, None) if _passed(first) else (None, first.rate_per_second)
    while (rate := _next_rate(low, high, most, search.resolution)) is not None and rate >= lowest:
        point = probe(rate)
        points.append(point)
        low, high = (rate, high) if _passed(point) else (low, rate)
    return tuple(sorted(points, key=lambda point: point.rate_per_second))


def highest_passed(points: tuple[RatePoint, ...]) -> float | None:
    """The highest rate below which nothing failed; None when the lowest one already did."""
    highest = None
    for point in points:
        if not _passed(point):
            break
        highest = point.rate_per_second
    return highest


def _next_rate(low: float | None, high: float | None, most: float, resolution: float) -> float | None:
    if low is None:
        return None if high is None else high / _STEP
    if high is None:
        return None if low >= most else min(most, low * _STEP)
    return math.sqrt(low * high) if (high - low) / high > resolution else None


def _passed(point: RatePoint) -> bool:
    return point.verdict is Verdict.GO
