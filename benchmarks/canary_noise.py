"""Simulated servers whose latencies waver with time: what each block of time of many runs counts.

A server's latencies are those of `canary_traffic` times a factor that changes with time. What the factor does is the
noise: an AR(1) process of each server by itself, stalls, heavy tails, a drift that both share, or cold caches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from canary_traffic import SAME, Counts, Numbers, Truth

BLOCK_SECONDS = 10.0
_STALL_STEPS = 100


@dataclass(frozen=True)
class Noise:
    """How one server wavers by itself; standard deviations are of the logarithm of latency.

    Attributes:
        seconds: Correlation time of an AR(1) process.
        spread: Its standard deviation.
        heavy: Scale of independent factors of each block, of Student's distribution with three degrees of freedom.
        drift: Amplitude of a daily rise and fall that both servers share.
        stall_every: Time between two stalls of a server, in seconds; 0 for none.
        stall_seconds: How long a stall lasts: who comes then waits for its end.
        cold: Factor of a candidate's latencies in the first `cold_seconds` of the step.
    """

    name: str
    seconds: float = 0.0
    spread: float = 0.0
    heavy: float = 0.0
    drift: float = 0.0
    stall_every: float = 0.0
    stall_seconds: float = 10.0
    cold: float = 1.0
    cold_seconds: float = 30.0


@dataclass(frozen=True)
class Server:
    """What one server answered, runs by blocks; `slow` has the limits as its last axis."""

    requests: Counts
    slow: Counts


def draw_servers(
    noise: Noise, truth: Truth, *, rate: float, share: float, limits: Numbers, shape: tuple[int, int, int],
    random: np.random.Generator,
) -> tuple[Server, Server, Server]:  # fmt: skip
    """Stable before the canary, the candidate, and stable beside it.

    Args:
        noise: Of both servers, each by itself.
        truth: What the candidate does.
        rate: Requests per second of both arms together.
        share: The candidate's.
        limits: Beyond what requests are counted as slow, in milliseconds, rising.
        shape: Runs, blocks of stable's history, blocks of the canary.
        random: Where numbers come from.
    """
    runs, before, blocks = shape
    stable, candidate = (_wavering(noise, runs, length, random) for length in (before + blocks, blocks))
    shared = noise.drift * np.sin(
        2 * np.pi * (np.arange(before + blocks) * BLOCK_SECONDS / 86_400 + random.random((runs, 1)))
    )
    stable, candidate = stable + shared, candidate + shared[:, before:]
    candidate[:, : math.ceil(noise.cold_seconds / BLOCK_SECONDS)] += math.log(noise.cold)
    stalled, stalled_too = (_stalled(noise, runs, length, random) for length in (before + blocks, blocks))
    alike: Any = {"limits": limits, "noise": noise, "random": random}
    return (
        _draw(SAME, rate=rate, factors=stable[:, :before], stalled=stalled[:, :before], **alike),
        _draw(truth, rate=rate * share, factors=candidate, stalled=stalled_too, **alike),
        _draw(SAME, rate=rate * (1.0 - share), factors=stable[:, before:], stalled=stalled[:, before:], **alike),
    )


def _wavering(noise: Noise, runs: int, blocks: int, random: np.random.Generator) -> Numbers:
    from scipy.signal import lfilter

    found = np.zeros((runs, blocks))
    if noise.spread:
        kept = math.exp(-BLOCK_SECONDS / noise.seconds)
        steps = random.normal(size=(runs, blocks)) * noise.spread * math.sqrt(1.0 - kept**2)
        steps[:, 0] = random.normal(size=runs) * noise.spread
        found += lfilter([1.0], [1.0, -kept], steps, axis=1)
    if noise.heavy:
        found += noise.heavy * random.standard_t(3, size=(runs, blocks))
    return found


def _stalled(noise: Noise, runs: int, blocks: int, random: np.random.Generator) -> Numbers:
    """The part of each block that lies within a stall."""
    if not noise.stall_every:
        return np.zeros((runs, blocks))
    moments = np.arange(blocks * _STALL_STEPS) * (BLOCK_SECONDS / _STALL_STEPS)
    within = (moments + random.random((runs, 1)) * noise.stall_every) % noise.stall_every < noise.stall_seconds
    parts: Numbers = within.reshape(runs, blocks, _STALL_STEPS).mean(axis=2)
    return parts


def _draw(
    truth: Truth, *, rate: float, limits: Numbers, factors: Numbers, stalled: Numbers, noise: Noise,
    random: np.random.Generator,
) -> Server:  # fmt: skip
    requests = random.poisson(rate * BLOCK_SECONDS, size=factors.shape)
    beyond = truth.beyond(limits / np.exp(factors)[..., None])
    if noise.stall_every:
        waits = np.linspace(0.0, 1000.0 * noise.stall_seconds, 101)[1:]
        waiting = truth.beyond(np.maximum(limits - waits[:, None], 1e-3)).mean(axis=0)
        beyond = beyond * (1.0 - stalled[..., None]) + waiting * stalled[..., None]
    slow = np.empty(beyond.shape, dtype=np.int64)
    left, before = requests, np.ones(factors.shape)
    for number in range(len(limits)):
        left = random.binomial(left, np.clip(beyond[..., number] / np.maximum(before, 1e-12), 0.0, 1.0))
        slow[..., number], before = left, beyond[..., number]
    return Server(requests, slow)
