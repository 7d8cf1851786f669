"""Simulated servers of known latency: independent answers, queues, windows that differ, rare spells and stops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.loadtest.records import COLUMNS, Answered, Fault, Records, column_type

Seconds = NDArray[np.float64]
_LONG_RUNS, _LONG_REQUESTS = 400, 8000
_WARM = 3000
_PREFILL, _SPREAD = 0.05, 0.3
_BURST = 200.0


@dataclass(frozen=True)
class Independent:
    """Answers that know nothing of one another: lognormal."""

    name: str = "independent"
    spread: float = 0.5

    def windows(self, count: int, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token, windows x requests."""
        return random.lognormal(0.0, self.spread, (count, requests))

    def quantile(self, share: float) -> float:
        """The exact quantile of the distribution."""
        from scipy import special

        return float(np.exp(self.spread * special.ndtri(share)))


class _InSteadyState(ABC):
    """A server whose quantiles no formula gives: they are taken from a long run."""

    @abstractmethod
    def windows(self, count: int, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token, windows x requests."""

    def quantile(self, share: float) -> float:
        """A quantile of the steady state, of 3.2 million requests."""
        return float(np.quantile(self._steady, share))

    @cached_property
    def _steady(self) -> Seconds:
        return self.windows(_LONG_RUNS, _LONG_REQUESTS, np.random.default_rng(77)).ravel()


@dataclass(frozen=True)
class Queue(_InSteadyState):
    """M/G/k, first come first served: Poisson arrivals, lognormal service of mean 1, and a prefill beside the wait.

    Attributes:
        servers: Requests that are served at a time.
        load: Share of the capacity that is asked for.
        variation: Coefficient of variation of the service times.
    """

    servers: int
    load: float
    variation: float

    @property
    def name(self) -> str:
        """For the table."""
        service = f", service varies {self.variation:g}" if self.variation > 1.0 else ""
        return f"M/G/{self.servers} at {100 * self.load:.0f} %{service}"

    def windows(self, count: int, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token, windows x requests, each window from the steady state."""
        spread = float(np.sqrt(np.log1p(self.variation**2)))
        free, now = np.zeros((count, self.servers)), np.zeros(count)
        waits = np.empty((count, requests))
        for place in range(-_WARM, requests):
            now += random.exponential(1.0 / (self.servers * self.load), count)
            started = np.maximum(now, free[:, 0])
            if place >= 0:
                waits[:, place] = started - now
            free[:, 0] = started + random.lognormal(-(spread**2) / 2.0, spread, count)
            free.sort(axis=1)
        return waits + _PREFILL * random.lognormal(0.0, _SPREAD, waits.shape)


@dataclass(frozen=True)
class Differing:
    """Independent answers, all of a window slower or faster by a factor of its own."""

    apart: float = 0.3
    spread: float = 0.5

    @property
    def name(self) -> str:
        """For the table."""
        return f"windows that differ by {100 * self.apart:.0f} %"

    def windows(self, count: int, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token, windows x requests."""
        factors = random.lognormal(0.0, self.apart, (count, 1))
        return factors * random.lognormal(0.0, self.spread, (count, requests))

    def quantile(self, share: float) -> float:
        """The exact quantile over all windows there could be."""
        from scipy import special

        return float(np.exp(np.hypot(self.apart, self.spread) * special.ndtri(share)))


@dataclass(frozen=True)
class Bursts(_InSteadyState):
    """M/G/k whose traffic comes in bursts: Poisson arrivals of two rates that take turns at random (MMPP).

    Attributes:
        servers: Requests that are served at a time.
        load: Share of the capacity that is asked for, on average.
        apart: The higher rate by the lower one. Each is kept for 200 requests of the mean rate on average.
    """

    servers: int
    load: float
    apart: float

    @property
    def name(self) -> str:
        """For the table."""
        return f"M/G/{self.servers} at {100 * self.load:.0f} %, bursts of {self.apart:g} times the rate"

    def windows(self, count: int, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token, windows x requests, each window from the steady state."""
        mean = self.servers * self.load
        rates = mean * 2.0 / (1.0 + self.apart) * np.array([1.0, self.apart])
        free, now = np.zeros((count, self.servers)), np.zeros(count)
        phase = random.integers(0, 2, count)
        left = random.exponential(_BURST / mean, count)
        waits = np.empty((count, requests))
        for place in range(-_WARM, requests):
            work = random.exponential(1.0, count)
            while np.any(over := work > left * rates[phase]):
                work -= np.where(over, left * rates[phase], 0.0)
                now += np.where(over, left, 0.0)
                phase = np.where(over, 1 - phase, phase)
                left = np.where(over, random.exponential(_BURST / mean, count), left)
            gap = work / rates[phase]
            now, left = now + gap, left - gap
            started = np.maximum(now, free[:, 0])
            if place >= 0:
                waits[:, place] = started - now
            free[:, 0] = started + random.exponential(1.0, count)
            free.sort(axis=1)
        return waits + _PREFILL * random.lognormal(0.0, _SPREAD, waits.shape)


@dataclass(frozen=True)
class Neighbour:
    """Answers that a neighbour slows down by a factor that wanders: its logarithm is autoregressive, AR(1).

    Attributes:
        memory: Requests after which the factor has forgotten 63 % of what it was.
        apart: Standard deviation of its logarithm.
        spread: The same of the answers beside it.
    """

    memory: float
    apart: float = 0.3
    spread: float = 0.5

    @property
    def name(self) -> str:
        """For the table."""
        return f"noisy neighbour, {self.memory:g} requests long"

    def windows(self, count: int, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token, windows x requests."""
        kept = float(np.exp(-1.0 / self.memory))
        state = random.normal(0.0, 1.0, count)
        factors = np.empty((count, requests))
        for place in range(requests):
            factors[:, place] = state
            state = kept * state + float(np.sqrt(1.0 - kept**2)) * random.normal(0.0, 1.0, count)
        return np.exp(self.apart * factors) * random.lognormal(0.0, self.spread, factors.shape)

    def quantile(self, share: float) -> float:
        """The exact quantile over all its states."""
        from scipy import special

        return float(np.exp(np.hypot(self.apart, self.spread) * special.ndtri(share)))


Server = Independent | Queue | Differing | Bursts | Neighbour


@dataclass(frozen=True)
class Spells:
    """Requests are late in spells that come at random; all others are answered fast.

    Attributes:
        length: Requests of a spell.
        share: Share of all requests that are late, about.
    """

    length: int
    share: float

    @property
    def period(self) -> float:
        """Requests from one spell to the next, on average."""
        return self.length / self.share

    def window(self, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token; a late one takes 2, others much less than 1."""
        first = np.flatnonzero(random.random(requests + self.length) < 1.0 / self.period) - self.length
        late = np.zeros(requests, np.bool_)
        for start in first:
            late[max(0, start) : start + self.length] = True
        return np.where(late, 2.0, random.lognormal(-2.0, 0.3, requests))


_NOISE = 0.99
_ANSWER = Answered(
    number=0,
    arrives_at=0.0,
    lag_seconds=1e-6,
    first_token_seconds=0.0,
    last_token_seconds=0.0,
    total_seconds=0.0,
    output_tokens=8,
    asked_tokens=8,
    status=200,
)


def records_of(
    first_token_seconds: Seconds, arrives_at: Seconds | None = None, failed: NDArray[np.bool_] | None = None
) -> Records:
    """A window of answers with these times, one a second unless it is said when they arrive; some failed."""
    count = len(first_token_seconds)
    columns = {name: np.full(count, getattr(_ANSWER, name), dtype=column_type(name)) for name in COLUMNS}
    columns |= {
        "number": np.arange(count),
        "arrives_at": np.arange(count, dtype=np.float64) if arrives_at is None else arrives_at,
    }
    if failed is not None:
        columns["fault"] = np.where(failed, Fault.SHED, Fault.NONE).astype(column_type("fault"))
    columns |= {"first_token_seconds": first_token_seconds, "last_token_seconds": first_token_seconds + 0.1}
    return Records({**columns, "total_seconds": first_token_seconds + 0.1})


def by_chance(share: float, runs: int) -> float:
    """The share of runs that a calibrated gate exceeds in no more than one run of the benchmark in a hundred."""
    from scipy import stats

    return float(stats.binom.ppf(_NOISE, runs, share)) / runs
