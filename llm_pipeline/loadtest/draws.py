"""Random draws of arrivals and lengths, with the same bytes on every machine and under every release of numpy.

The bits are PCG64's, whose stream numpy keeps (NEP 19); the methods of its `Generator` may change, and its logarithm
differs in the last bit between processors. So everything here is built from operations that IEEE 754 rounds exactly:
+ - * / and the square root, element by element.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.config.workload import (
    Arrivals,
    ConstantArrivals,
    GammaArrivals,
    Lengths,
    LognormalLengths,
    PoissonArrivals,
    RecordedLengths,
    UniformLengths,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_LOG_TERMS = 13
_EXP_TERMS = 14
_LOWEST_EXPONENT = -708.0


class Draws:
    """A stream of random numbers.

    Args:
        seed: The same one gives the same numbers.
        purpose: What they are for; another purpose gives others.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        digest = hashlib.sha256(f"{purpose} {seed}".encode()).digest()
        self._bits = np.random.PCG64(int.from_bytes(digest[:16], "big"))

    def uniform(self, count: int) -> Floats:
        """Numbers between 0 and 1, neither included."""
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        return ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def integers(self, below: int, count: int) -> Integers:
        """Integers from 0 to `below`, which is not included."""
        return np.asarray(self.uniform(count) * below, dtype=np.int64)

    def exponential(self, count: int) -> Floats:
        """Exponential numbers of mean 1."""
        return -log(self.uniform(count))

    def normal(self, count: int) -> Floats:
        """Normal numbers of mean 0 and variance 1, by Marsaglia's polar method."""
        found: list[Floats] = []
        while (missing := count - sum(map(len, found))) > 0:
            pairs = 2.0 * self.uniform(2 * (missing + 8)).reshape(2, -1) - 1.0
            square = pairs[0] * pairs[0] + pairs[1] * pairs[1]
            inside = square < 1.0
            square = square[inside]
            found.append(pairs[0][inside] * np.sqrt(-2.0 * log(square) / square))
        return np.concatenate([*found, np.empty(0)])[:count]

    def gamma(self, shape: float, count: int) -> Floats:
        """Gamma numbers of a shape and of scale 1 (G. Marsaglia, W. Tsang, ACM TOMS 26(3), 2000).

        A shape below 1 takes a number of shape + 1 times a uniform one to the power of 1 / shape.
        """
        if shape < 1.0:
            return self.gamma(shape + 1.0, count) * exp(log(self.uniform(count)) / shape)
        third = shape - 1.0 / 3.0
        slope = 1.0 / np.sqrt(9.0 * third)
        found: list[Floats] = []
        while (missing := count - sum(map(len, found))) > 0:
            normal, uniform = self.normal(missing + 8), self.uniform(missing + 8)
            root = 1.0 + slope * normal
            cube = np.where(root > 0.0, root * root * root, 1.0)
            bound = 0.5 * normal * normal + third - third * cube + third * log(cube)
            found.append((third * cube)[(root > 0.0) & (log(uniform) < bound)])
        return np.concatenate([*found, np.empty(0)])[:count]

    def order(self, count: int) -> Integers:
        """The numbers from 0 to `count`, which is not included, in a random order."""
        return np.argsort(self.uniform(count), kind="stable")


def log(values: Floats) -> Floats:
    """Natural logarithm of positive numbers, to a few units in the last place; see the module for why not numpy's."""
    mantissa, exponent = np.frexp(values)
    low = mantissa < np.sqrt(0.5)
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    exponent = exponent - low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for odd in range(2 * _LOG_TERMS - 1, 0, -2):
        series = series * square + 1.0 / odd
    return np.asarray(exponent * _LN2_HIGH + (2.0 * ratio * series + exponent * _LN2_LOW))


def exp(values: Floats) -> Floats:
    """The exponential function; 0 for what is below the smallest normal number."""
    values = np.maximum(values, _LOWEST_EXPONENT)
    doublings = np.rint(values / _LN2_HIGH)
    rest = (values - doublings * _LN2_HIGH) - doublings * _LN2_LOW
    series = np.ones_like(rest)
    for term in range(_EXP_TERMS, 0, -1):
        series = 1.0 + series * rest / term
    powers: Floats = np.ldexp(series, doublings.astype(np.int32))
    return np.where(values > _LOWEST_EXPONENT, powers, 0.0)


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


_NORMAL_P95 = 1.6448536269514722


def draw_lengths(lengths: tuple[int, int] | UniformLengths | LognormalLengths, count: int, draws: Draws) -> Integers:
    """Lengths in tokens, 1 or more; shape [count]."""
    if isinstance(lengths, LognormalLengths):
        return _lognormal(lengths, count, draws)
    least, most = lengths if isinstance(lengths, tuple) else (lengths.minimum, lengths.maximum)
    return least + draws.integers(most - least + 1, count)


def _lognormal(lengths: LognormalLengths, count: int, draws: Draws) -> Integers:
    spread = log(np.array([lengths.p95 / lengths.median])) / _NORMAL_P95
    drawn = lengths.median * exp(spread * draws.normal(count))
    return np.clip(np.rint(drawn).astype(np.int64), lengths.minimum, lengths.maximum)


def longest(lengths: tuple[int, int] | Lengths) -> int:
    """The longest that can be drawn, in tokens."""
    return lengths[1] if isinstance(lengths, tuple) else lengths.maximum


def cut(recorded: Integers, lengths: RecordedLengths) -> Integers:
    """Recorded lengths, none above the maximum."""
    return np.minimum(recorded, lengths.maximum)


def assign(shares: Mapping[int, float], count: int, draws: Draws) -> Integers:
    """A value for each request, each for exactly its share of them, to one request; shape [count].

    What the shares leave gets 0.
    """
    values = np.zeros(count, dtype=np.int64)
    order, taken, total = draws.order(count), 0, 0.0
    for value, share in sorted(shares.items()):
        total += share
        end = min(count, round(total * count))
        values[order[taken:end]] = value
        taken = end
    return values
