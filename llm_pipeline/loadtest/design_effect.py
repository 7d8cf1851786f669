"""The design effect of correlated requests, and how slow further windows may be. Pure.

Requests that wait in one queue are late together, so a window of 600 may tell no more than 20 independent requests
would. The design effect is the factor: the variance of a share, by that of independent requests (L. Kish, Survey
Sampling, 1965). Here it is the integrated autocorrelation time of being above a level, in order of arrival, around
the mean of all windows together. The sum of autocorrelations ends by C. J. Geyer's initial monotone sequence
(Practical Markov Chain Monte Carlo, Statistical Science 7, 1992), and its upper bound is taken by the standard error of
A. Sokal (Monte Carlo Methods in Statistical Mechanics, 1997), because windows are few and short.

The level is the quantile that must be within the limit: for the worst server that must not pass, the misses are the
requests above it, and those can be seen even in a sample with few misses (P. Heidelberger and P. A. W. Lewis, Quantile
Estimation in Dependent Sequences, Operations Research 32, 1984). If few requests lie above it, a lower level and the
misses themselves are used as well.

A test that saw few spells of waiting by chance has few late requests, and they look less correlated than they are: the
two errors come together, and no interval that scales the misses by their own variance sees it. `waiting_effect` allows
for it in three ways. It looks at low levels, above which many requests lie, and raises what it finds there, because
requests that wait longer are more correlated. It extrapolates: how much more correlated they are, the sample shows
below the limit, where its slowest twentieth is compared with its slowest three tenths. In a queue that most requests
wait in, the two are alike; in one that seldom fills, as that of many servers, the rarer level is several times as
correlated, and the limit of a server that must not pass lies about as far beyond it again. And it takes in windows that
are not judged: they show as well how requests wait, and nothing of how many were late (data splitting: D. R. Cox, A
Note on Data-Splitting for the Evaluation of Significance Levels, Biometrika 62, 1975).

Windows differ (other prompts, a neighbour, heat), and there are only a few of them. Their difference is charged as
latency: `slowdown` is how much slower than the middle one a window may be, by the one-sided tolerance limit of a normal
sample (D. B. Owen, A Survey of Properties and Applications of the Noncentral t-Distribution, Technometrics 10, 1968) of
the windows' logarithms. Windows that resemble the one before them count for fewer: for as many independent ones as
would show their mean as well, n (1 - r) / (1 + r) where neighbours have the correlation r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Severity = NDArray[np.float64]
"""Each request's latency divided by its limit: above 1 is missed, infinite failed, NaN not measurable."""

_MOST_BATCHES = 50_000

_STANDARD_ERRORS = 1.0
"""Beyond the estimate: `benchmarks/load_gate.py` shows that this is enough for the windows of a load test."""

_FEWEST_ABOVE = 100
_LARGEST_SHARE = 0.25
"""How many requests above a level show their clustering; at most this share of all."""

_RAISED = ((0.3, 1.6), (0.1, 1.2))
"""Shares of the slowest requests, and by what factor misses are more correlated than these. In queues of 1 to 16
servers with a load of 0.5 to 0.9 and service times that vary by up to 1.5 times their mean, the slowest twentieth is
1.7 to 1.9 times as correlated as three tenths and 1.1 to 1.3 times as a tenth."""

_RARER = 6.0
"""The step between two levels below the limit: as much as the correlation grows over it, it may grow over the next."""

_COMMON = 0.3
"""Share of requests above the lower one of them, at most: beyond, most queues are empty."""

_FAST = 0.25
"""The quantile at which windows are compared: waiting, which the design effect covers, moves it least."""

_REACH = 0.6
"""Standard deviations between windows by which the limit of a share of all requests lies above that of the same share
of a middle window: z (sqrt(1 + r^2) - 1) / r, which is 0.46 at p95 and 0.64 at p99 where windows differ r = 0.6 times
as much as the requests of one do."""

_FEWEST_PLACES = 3.5
"""Windows that resemble one another count for no fewer, because a few always may by chance: `benchmarks/load_gate.py`
shows that this is enough for a neighbour whose noise lasts for three windows."""

_LARGEST_LOGARITHM = 50.0


def design_effect(windows: Sequence[Severity], attainment: float) -> float:
    """The design effect of the share of requests within a limit: 1 or more, and no more than there are requests.

    Args:
        windows: Latency by limit of each request, in order of arrival, a window each.
        attainment: Share of requests that must be within the limit.
    """
    alike = _aligned(windows)
    ordered = np.sort(np.concatenate(alike))
    requests = len(ordered)
    above = 1.0 - attainment
    shares = {above, max(above, min(_LARGEST_SHARE, _FEWEST_ABOVE / max(1, requests)))}
    levels = [_level(ordered, share) for share in shares]
    events = [[window > 1.0 for window in windows], *([window > level for window in alike] for level in levels)]
    times = [autocorrelation_time(event, _STANDARD_ERRORS) for event in events]
    return min(max(times), max(1.0, float(requests)))


def effect_of_misses(windows: Sequence[Severity]) -> float:
    """Upper bound of the design effect of the observed misses."""
    requests = sum(len(window) for window in windows)
    return min(autocorrelation_time([window > 1.0 for window in windows], _STANDARD_ERRORS), max(1.0, float(requests)))


def waiting_effect(windows: Sequence[Severity], attainment: float) -> float:
    """Upper bound of the design effect of misses in a queue, estimated from how the slow requests cluster.

    Args:
        windows: Latency by limit of each request, in order of arrival, a window each.
        attainment: Share of requests that must be within the limit.
    """
    alike = _aligned(windows)
    ordered = np.sort(np.concatenate(alike))
    above = 1.0 - attainment

    def time(share: float) -> float:
        level = _level(ordered, share)
        return autocorrelation_time([window > level for window in alike])

    rare, common = time(above), time(max(above, min(_COMMON, _RARER * above)))
    grown = rare * max(1.0, rare / common)
    raised = [1.0 + factor * (time(max(above, share)) - 1.0) for share, factor in _RAISED]
    return min(max(grown, *raised), max(1.0, float(len(ordered))))


def _level(ordered: Severity, share: float) -> float:
    """The level above which this share of the rising severities lies."""
    return float(ordered[max(1, math.ceil((1.0 - share) * len(ordered))) - 1])


def slowdown(windows: Sequence[Severity], confidence: float) -> float:
    """How much slower than the measured windows others may be, as a factor of latency; 1 for a single window.

    Args:
        windows: Latency by limit of each request, a window each, in the order in which they were measured.
        confidence: Confidence of the statement.
    """
    fast = _fast(windows)
    known = fast[np.isfinite(fast)]
    if len(known) < 2:  # noqa: PLR2004 - one window differs from none
        return 1.0
    from scipy import special

    count = _independent(known)
    factor = float(special.nctdtrit(count - 1.0, _REACH * math.sqrt(count), confidence)) / math.sqrt(count)
    spread = float(known.std()) * math.sqrt(count / (count - 1.0))
    return math.exp(min(_LARGEST_LOGARITHM, factor * spread))


def _independent(places: NDArray[np.float64]) -> float:
    """For how many independent windows these count, by how much each resembles the one before it.

    The correlation is J. von Neumann's (Distribution of the Ratio of the Mean Square Successive Difference to the
    Variance, Annals of Mathematical Statistics 12, 1941), which is 0 on average for few windows, too.
    """
    count, squares = float(len(places)), float(np.sum((places - places.mean()) ** 2))
    alike = max(0.0, 1.0 - float(np.sum(np.diff(places) ** 2)) / (2.0 * squares)) if squares else 0.0
    return max(min(count, _FEWEST_PLACES), count * (1.0 - alike) / (1.0 + alike))


def _aligned(windows: Sequence[Severity]) -> list[Severity]:
    """The windows scaled to equal speed: their difference is charged once, by `slowdown`."""
    fast = _fast(windows)
    known = fast[np.isfinite(fast)]
    if len(known) < len(fast):
        return list(windows)
    return [
        window * math.exp(float(known.mean()) - place) for window, place in zip(windows, fast.tolist(), strict=True)
    ]


def _fast(windows: Sequence[Severity]) -> NDArray[np.float64]:
    """The logarithm of each window's fast quantile; infinite if it has none."""
    with np.errstate(divide="ignore"):
        return np.log([np.quantile(window, _FAST, method="lower") if len(window) else 0.0 for window in windows])


def autocorrelation_time(windows: Sequence[NDArray[np.bool_]], standard_errors: float = 2.0) -> float:
    """Upper bound of the integrated autocorrelation time of an event, in requests; 1 where it is always the same.

    Many requests are summed in batches first, which leaves the result as it is and costs little time.

    Args:
        windows: Whether the event came, in order of arrival, a window each.
        standard_errors: How far the bound lies beyond the estimate.
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
    return max(1.0, time) * (1.0 + standard_errors * relative_error)


def _batches(window: NDArray[np.bool_], size: int) -> NDArray[np.float64]:
    """How often the event came in each batch of this many requests; an incomplete last batch is left out."""
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


_HALVINGS = 50


def upper_share(late: int, requests: int, confidence: float, design_effect: float) -> float:
    """One-sided upper bound of the share of late requests where they come in spells of geometric length.

    Args:
        late: How many were late.
        requests: How many there were.
        confidence: Confidence of the bound.
        design_effect: The variance of their number by that of independent ones, 1 or more.
    """
    few, many = late / requests, 1.0
    spells_a_request = 2.0 / (1.0 + design_effect)
    reached = _reached(late, spells_a_request)
    for _ in range(_HALVINGS):
        middle = (few + many) / 2.0
        seldom = _chance(requests * middle * spells_a_request, reached) <= 1.0 - confidence
        few, many = (few, middle) if seldom else (middle, many)
    return many


def without_late(share: float, confidence: float, design_effect: float) -> float:
    """The requests that show a share of late ones when none of them is late: no spell came, at the share's rate."""
    return math.log(1.0 / (1.0 - confidence)) * (1.0 + design_effect) / (2.0 * share)


def _reached(late: int, end: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The chance that 0, 1, 2 ... spells hold no more late requests; each ends with a certain chance at any of them."""
    from scipy import special

    spells = np.arange(late + 1)
    within = special.betainc(np.maximum(spells, 1), late - np.maximum(spells, 1) + 1.0, end) if late else np.ones(1)
    within[0] = 1.0
    return np.asarray(within, dtype=np.float64)


def _chance(spells: float, reached: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The chance of no more late requests than were seen, where so many spells are expected."""
    from scipy import special

    numbers = np.arange(len(reached))
    logarithms = numbers * math.log(spells) - spells - special.gammaln(numbers + 1.0) if spells else -np.inf * numbers
    return float(np.exp(logarithms) @ reached)
