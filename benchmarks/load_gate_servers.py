"""Simulated servers of known latency: independent answers, and a queue in which requests wait for one another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
_LONG_RUNS, _LONG_REQUESTS = 400, 8000
_WARM = 3000
_PREFILL, _SPREAD = 0.05, 0.3


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


@dataclass(frozen=True)
class Queue:
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
        return f"M/G/{self.servers} at {100 * self.load:.0f} %"

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

    def quantile(self, share: float) -> float:
        """A quantile of the steady state, of 3.2 million requests."""
        return float(np.quantile(self._steady, share))

    @cached_property
    def _steady(self) -> Seconds:
        return self.windows(_LONG_RUNS, _LONG_REQUESTS, np.random.default_rng(77)).ravel()


Server = Independent | Queue
