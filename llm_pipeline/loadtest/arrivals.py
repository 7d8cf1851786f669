"""Arrival times of an open-loop load test: a Poisson process, the same for the same seed."""

from __future__ import annotations

import random


def poisson_arrivals(rate_per_second: float, duration_seconds: float, seed: int) -> tuple[float, ...]:
    """Arrival times in seconds from the start of the window, rising, all before its end.

    The gaps are exponential, as in MLPerf Inference's server scenario: users do not wait for one another.

    Raises:
        ValueError: The rate or the duration is not positive.
    """
    if rate_per_second <= 0 or duration_seconds <= 0:
        raise ValueError(f"{rate_per_second=} and {duration_seconds=} must be positive")
    draws = random.Random(f"arrivals {seed}")  # noqa: S311 - a schedule, not a secret
    times: list[float] = []
    now = draws.expovariate(rate_per_second)
    while now < duration_seconds:
        times.append(now)
        now += draws.expovariate(rate_per_second)
    return tuple(times)
