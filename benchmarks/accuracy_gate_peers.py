"""Rules of other tools, on the same simulated items: each says from point estimates or unpaired errors what passes.

`nvidia_day0`: Model-Optimizer's day0-release skill compares each task's accuracy with the baseline's; a drop beyond
one point on any task is a regression, a gain beyond five points is anomalous. `llm_compressor`: its lm-eval tests ask
that the ratio of the two accuracies, rounded to two digits, is at least 0.95, on 1000 items. `model_comparator`:
lm-eval's script tests two accuracies for a difference, unpaired and two-sided, on 100 items; no difference found is a
pass.
"""

from __future__ import annotations

import numpy as np
from accuracy_gate_ours import Truth
from numpy.typing import NDArray

BASELINE = 0.7
_DROP, _GAIN = 0.01, 0.05
_RATIO = 0.95
_TWO_SIDED = 1.959964
_EDGE = 1e-12


def nvidia_day0(truth: Truth, runs: int, random: np.random.Generator, *, items: int = 500, tasks: int = 1) -> float:
    """Share of evaluations that pass on every task."""
    drawn = random.multinomial(items, truth.shares, size=(runs, tasks))
    loss = (drawn[..., 0] - drawn[..., 1]) / items
    return float(((loss <= _DROP + _EDGE) & (loss >= -_GAIN - _EDGE)).all(axis=1).mean())


def llm_compressor(truth: Truth, runs: int, random: np.random.Generator, *, items: int = 1000) -> float:
    """Share of evaluations that pass."""
    before, after = _accuracies(truth, runs, random, items)
    return float((np.round(after / before, 2) >= _RATIO - _EDGE).mean())


def model_comparator(truth: Truth, runs: int, random: np.random.Generator, *, items: int = 100) -> float:
    """Share of evaluations in which no difference is found."""
    before, after = _accuracies(truth, runs, random, items)
    error = np.sqrt((before * (1 - before) + after * (1 - after)) / (items - 1))
    return float((np.abs(before - after) <= _TWO_SIDED * error).mean())


def _accuracies(
    truth: Truth, runs: int, random: np.random.Generator, items: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    lost, gained, same = truth.shares
    right = BASELINE - lost
    drawn = random.multinomial(items, (lost, gained, right, same - right), size=runs)
    return (drawn[:, 0] + drawn[:, 2]) / items, (drawn[:, 1] + drawn[:, 2]) / items
