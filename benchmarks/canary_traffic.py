"""Simulated traffic of a canary: what every look of every run counts, drawn without drawing single requests.

Latency is lognormal around 200 ms with a slow mode at 1.2 s. Counts beyond fixed limits are multinomial, and the p99 of
a window is an order statistic of uniform numbers, which has a beta distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]

LOOKS, LOOK_SECONDS, STRATA = 60, 60.0, 3
ERROR_SHARE = 0.002
_SPREAD, _SLOW_MEDIAN, _SLOW_SPREAD = 0.5, 1200.0, 0.4
_GRID = np.exp(np.linspace(math.log(5.0), math.log(50_000.0), 20_000))


@dataclass(frozen=True)
class Truth:
    """What a candidate does.

    Attributes:
        errors: Ratio of its error share to stable's 0.2 %.
        median_milliseconds: Of the first token.
        slow_mode: Share of its requests that are in the slow mode.
    """

    name: str
    errors: float = 1.0
    median_milliseconds: float = 200.0
    slow_mode: float = 0.005

    @property
    def error_share(self) -> float:
        """Share of requests that fail."""
        return min(1.0, ERROR_SHARE * self.errors)

    def beyond(self, limits: Numbers) -> Numbers:
        """Shares of requests that take longer than each limit, in milliseconds."""
        return 1.0 - np.interp(limits, _GRID, self._distribution())

    def quantile(self, levels: Numbers) -> Numbers:
        """Milliseconds that these shares of requests do not exceed."""
        return np.interp(levels, self._distribution(), _GRID)

    def _distribution(self) -> Numbers:
        from scipy import stats

        usual = stats.lognorm.cdf(_GRID, _SPREAD, scale=self.median_milliseconds)
        slow = stats.lognorm.cdf(_GRID, _SLOW_SPREAD, scale=_SLOW_MEDIAN)
        return (1.0 - self.slow_mode) * usual + self.slow_mode * slow


SAME = Truth("no change")
TRUTHS = (
    SAME,
    Truth("3x errors", errors=3.0),
    Truth("10x errors", errors=10.0),
    Truth("50x errors", errors=50.0),
    Truth("1.3x median", median_milliseconds=260.0),
    Truth("tail 0.5 -> 3 %", slow_mode=0.03),
)


@dataclass(frozen=True)
class Arm:
    """One arm of many runs: strata of prompts by runs by looks, `slow` with the limits as its last axis.

    Attributes:
        p99: Milliseconds, of all strata, runs by looks; NaN where a look has no requests.
    """

    requests: Counts
    errors: Counts
    answered: Counts
    slow: Counts
    p99: Numbers

    @property
    def error_shares(self) -> Numbers:
        """Of all strata, runs by looks; NaN where a look has no requests."""
        requests, errors = self.requests.sum(axis=0), self.errors.sum(axis=0)
        return np.where(requests > 0, errors / np.maximum(requests, 1), np.nan)


def draw_arm(truth: Truth, rate: float, limits: Numbers, runs: int, random: np.random.Generator) -> Arm:
    """The looks of many runs at `rate` requests a second of this arm; limits in milliseconds, rising."""
    requests = random.poisson(rate * LOOK_SECONDS / STRATA, size=(STRATA, runs, LOOKS))
    errors = random.binomial(requests, truth.error_share)
    answered = requests - errors
    between = -np.diff(np.concatenate([[1.0], truth.beyond(limits), [0.0]]))
    parts = random.multinomial(answered, between)
    slow = answered[..., None] - parts.cumsum(axis=-1)[..., :-1]
    total = answered.sum(axis=0)
    order = 1.0 + 0.99 * np.maximum(total - 1, 0)  # between two values, as they are usually interpolated
    level = random.beta(order, np.maximum(total, 1) - order + 1.0)
    return Arm(requests, errors, answered, slow, np.where(total > 0, truth.quantile(level), np.nan))
