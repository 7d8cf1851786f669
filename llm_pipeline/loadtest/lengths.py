"""Lengths of prompts and answers, and shares of requests, as arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llm_pipeline.config.workload import Lengths, LognormalLengths, RecordedLengths, UniformLengths
from llm_pipeline.loadtest.draws import Draws, Floats, Integers, exp, log

_NORMAL_P95 = 1.6448536269514722


def draw_lengths(lengths: tuple[int, int] | UniformLengths | LognormalLengths, count: int, draws: Draws) -> Integers:
    """Lengths in tokens, 1 or more; shape [count]."""
    if isinstance(lengths, LognormalLengths):
        return _lognormal(lengths, count, draws)
    least, most = lengths if isinstance(lengths, tuple) else (lengths.minimum, lengths.maximum)
    return least + draws.integers(most - least + 1, count)


def _lognormal(lengths: LognormalLengths, count: int, draws: Draws) -> Integers:
    spread = log(_array(lengths.p95 / lengths.median)) / _NORMAL_P95
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


def _array(value: float) -> Floats:
    return np.array([value])
