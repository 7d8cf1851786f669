"""Arrival times of an open loop: drawn processes, as arrays, the same for the same seed on every machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llm_pipeline.config.workload import (
    Arrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
)
from llm_pipeline.loadtest.draws import Draws, Floats

_LEAD_IN_SCALES = 10.0


def arrival_times(arrivals: Arrivals, rate_per_second: float, duration_seconds: float, seed: int) -> Floats:
    """Times in seconds from the start of a window, rising, all before its end; shape [requests].

    Raises:
        ValueError: The rate or the duration is not positive.
    """
    if rate_per_second <= 0 or duration_seconds <= 0:
        raise ValueError(f"{rate_per_second=} and {duration_seconds=} must be positive")
    draws, expected = Draws(seed, "arrivals"), rate_per_second * duration_seconds
    if isinstance(arrivals, PoissonArrivals):
        return duration_seconds * _poisson(expected, draws)
    if isinstance(arrivals, ConstantArrivals):
        return (np.arange(round(expected)) + 0.5) / max(1, round(expected)) * duration_seconds
    if isinstance(arrivals, GammaArrivals):
        return duration_seconds * _gamma(expected, arrivals.burstiness, draws)
    return duration_seconds * _ramp(_poisson(expected, draws), arrivals.first_share)


def _poisson(expected: float, draws: Draws) -> Floats:
    """Gaps are exponential, as in MLPerf Inference's server scenario: users do not wait for one another."""
    return _renewals(expected, draws.exponential) / expected


def _gamma(expected: float, burstiness: float, draws: Draws) -> Floats:
    """Gaps are gamma numbers with `burstiness` as their coefficient of variation.

    The process runs before the window begins: one that starts with it starts with a burst.
    """
    scale = burstiness * burstiness
    lead_in = _LEAD_IN_SCALES * max(1.0, scale)
    times = _renewals(expected + lead_in, lambda count: scale * draws.gamma(1.0 / scale, count)) - lead_in
    return times[times > 0.0] / expected


def _ramp(uniform_times: Floats, first_share: float) -> Floats:
    """Times of a constant rate on [0, 1], moved to those of a rate that rises linearly (time rescaling).

    The expected share of requests by time t is f t + (1 - f) t^2, which is solved for t.
    """
    root = np.sqrt(first_share * first_share + 4.0 * (1.0 - first_share) * uniform_times)
    return 2.0 * uniform_times / (first_share + root)


def _renewals(end: float, gaps: Callable[[int], Floats]) -> Floats:
    """Sums of gaps of mean 1 that are below `end`."""
    drawn = np.empty(0)
    times = drawn
    while not len(times) or times[-1] < end:
        missing = end - (times[-1] if len(times) else 0.0)
        drawn = np.concatenate([drawn, gaps(int(missing + 4.0 * missing**0.5 + 16.0))])
        times = np.cumsum(drawn)
    return times[times < end]
