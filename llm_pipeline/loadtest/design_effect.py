"""How many independent requests a number of alike ones is worth. Pure.

Requests that wait in one queue are late together, so a window of 600 may tell no more than 20 independent requests
would. The design effect is the factor: the variance of a share, by that of independent requests (L. Kish, Survey
Sampling, 1965). Here it is the integrated autocorrelation time of being above a limit, in order of arrival, around
the mean of all windows together, so that windows that differ count as correlation, too. The sum of autocorrelations
ends by C. J. Geyer's initial monotone sequence (Practical Markov Chain Monte Carlo, Statistical Science 7, 1992),
and its upper bound is taken by the standard error of A. Sokal (Monte Carlo Methods in Statistical Mechanics, 1997),
because windows are few and short.

Few or no requests miss a limit that is met. How misses would cluster is then told by near misses: the same is
computed for shares of the limit, and the largest counts. Where no request came near the limit, requests count as
independent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.loadtest.attainment import Severity

NEAR = (1.0, 0.75, 0.5, 0.25)
"""Shares of a limit beyond which a request counts as a miss or a near miss."""

_MOST_BATCHES = 50_000

_STANDARD_ERRORS = 2.0
"""Beyond the estimate: `benchmarks/load_gate.py` shows that this is enough for the windows of a load test."""


def design_effect(windows: Sequence[Severity]) -> float:
    """The design effect of the share of requests within a limit: 1 or more, and no more than there are requests.

    Args:
        windows: Latency by limit of each request, in order of arrival, a window each.
    """
    requests = sum(len(window) for window in windows)
    times = [autocorrelation_time([window > share for window in windows]) for share in NEAR]
    return min(max(1.0, *times), max(1.0, float(requests)))


def autocorrelation_time(windows: Sequence[NDArray[np.bool_]]) -> float:
    """Upper bound of the integrated autocorrelation time of an event, in requests; 1 where it is always the same.

    Many requests are summed in batches first, which leaves the result as it is and costs little time.
    """
    count = sum(len(window) for window in windows)
    share = sum(int(np.sum(window)) for window in windows) / max(1, count)
    if share in (0.0, 1.0):
        return 1.0
    size = -(-count // _MOST_BATCHES)
    batches = [_batches(window, size) - size * share for window in windows if len(window) > size]
    summed = sum(len(window) for window in batches)
    if not summed:
        return 1.0
    variance = sum(float(np.sum(window**2)) for window in batches) / summed
    pairs = _pairs(batches)
    last = int(np.argmax(pairs <= 0.0)) if np.any(pairs <= 0.0) else len(pairs)
    time = variance / (size * share * (1.0 - share)) * (2.0 * float(np.minimum.accumulate(pairs[:last]).sum()) - 1.0)
    relative_error = float(np.sqrt(2.0 * (4 * last + 1) / summed))
    return max(1.0, time) * (1.0 + _STANDARD_ERRORS * relative_error)


def _batches(window: NDArray[np.bool_], size: int) -> NDArray[np.float64]:
    """How often the event came in each batch of so many requests; what remains at the end is left out."""
    whole = len(window) - len(window) % size
    return np.asarray(window[:whole].reshape(-1, size).sum(axis=1), dtype=np.float64)


def _pairs(windows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Sums of the autocorrelations at lags 0 and 1, 2 and 3, and so on, all windows together, around zero."""
    lags = 2 * max(1, max(len(window) for window in windows) // 2)
    covariance = np.zeros(lags)
    for window in windows:
        spectrum = np.fft.rfft(window, 2 * len(window))
        products = np.fft.irfft(spectrum * np.conj(spectrum), 2 * len(window))[: min(lags, len(window))]
        covariance[: len(products)] += products
    if covariance[0] <= 0.0:
        return np.ones(1)
    pairs: NDArray[np.float64] = (covariance / covariance[0]).reshape(-1, 2).sum(axis=1)
    return pairs
