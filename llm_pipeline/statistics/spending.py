"""Group-sequential boundaries: how much of the error is spent at each look, and what a look may decide by.

    level = nominal_level((0.2, 0.4, 0.6), late, alpha=0.05)  # the third of five looks

K. K. G. Lan and D. L. DeMets, Discrete sequential boundaries for clinical trials, Biometrika 70 (1983) 659-663: the
error spent until a share t of the items is a function fixed beforehand, so any look sizes are right. Passing spends
it late: it costs hardly any power. Failing spends it early, for bad models are stopped early in any case. Boundaries
come from the recursive integration of Armitage, McPherson and Rowe (1969), as in C. Jennison and B. W. Turnbull,
Group Sequential Methods with Applications to Clinical Trials (2000), chapter 19.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Spending = Callable[[float, float], float]
"""Error spent, of all that may be, when this share of the items was asked."""

_FLOOR = 1e-6
"""Spent at least until the last look, in proportion: an early look can then stop what is wholly broken."""

IMPROBABLE = 0.01
"""A look at which GO has no more than this chance at the last look is the last one.

At five looks it costs a lossless model 0.3 points of its 90 % power, and saves two thirds of the items of a model that
lost twice the margin.
"""

_NORMAL = NormalDist()
_WIDTH = 8.0
_STEPS_PER_DEVIATION = 6
_MOST_STEPS = 1500
_MOST_NEWTON_STEPS, _EXACT = 60, 1e-12


def late(alpha: float, share: float) -> float:
    """O'Brien and Fleming's type of spending: almost nothing early, so that the last look tests nearly at `alpha`."""
    if share >= 1.0:
        return alpha
    return max(2.0 * _NORMAL.cdf(_NORMAL.inv_cdf(alpha / 2.0) / math.sqrt(share)), _FLOOR * share * alpha)


def early(alpha: float, share: float) -> float:
    """Pocock's type of spending: about as much at each look."""
    return alpha * math.log1p((math.e - 1.0) * share)


def nominal_level(shares: tuple[float, ...], spending: Spending, alpha: float) -> float:
    """The one-sided level at which the latest look tests, so that all looks together keep `alpha`.

    Args:
        shares: Share of all items that each look until now has seen; rising.
        spending: `late` or `early`.
        alpha: One-sided error of all looks together.
    """
    return _NORMAL.cdf(-boundaries(shares, spending, alpha)[-1])


@lru_cache(maxsize=512)
def boundaries(shares: tuple[float, ...], spending: Spending, alpha: float) -> tuple[float, ...]:
    """The z-values that the looks test by, given only what each look has seen until then."""
    walk, found, before = _Walk.start(), list[float](), 0.0
    for share in shares:
        target, before = spending(alpha, share) - before, spending(alpha, share)
        found.append(walk.boundary(share, target))
        walk = walk.on(share, found[-1])
    return tuple(found)


@dataclass(frozen=True)
class _Walk:
    """Where a Brownian motion may be that no boundary has stopped: points with their weights of probability."""

    share: float
    points: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def start(cls) -> _Walk:
        return cls(0.0, np.zeros(1), np.ones(1))

    def boundary(self, share: float, chance: float) -> float:
        """The boundary that the walk is beyond with this chance, of a half at most.

        By Newton's method on the chance's logarithm, which is concave (A. Prekopa, Acta Scientiarum Mathematicarum 34,
        1973). It starts where a walk that nothing has stopped, or one from the highest point, is beyond as often: on
        the far side, so that each step comes nearer and none goes too far.
        """
        ahead, quantile = math.sqrt(share - self.share), -_NORMAL.inv_cdf(chance)
        found = min(quantile, (float(self.points[-1]) + ahead * quantile) / math.sqrt(share))
        for _ in range(_MOST_NEWTON_STEPS):
            distance = (found * math.sqrt(share) - self.points) / ahead
            # value by value: importing scipy takes longer than all that a plan asks of it
            there = float(self.weights @ [0.5 * math.erfc(one / math.sqrt(2.0)) for one in distance.tolist()])
            density = math.sqrt(share / (2.0 * math.pi)) / ahead * float(self.weights @ np.exp(-0.5 * distance**2))
            step = math.log(chance / there) * there / density
            found -= step
            if step <= _EXACT:
                break
        return found

    def on(self, share: float, upper: float) -> _Walk:
        """Advance to the next look, and keep the density below its boundary (Simpson's rule)."""
        root, step = math.sqrt(share), math.sqrt(share - self.share)
        low, high = -_WIDTH * root, min(upper, _WIDTH) * root
        steps = 2 * min(_MOST_STEPS, max(20, math.ceil(_STEPS_PER_DEVIATION * (high - low) / step / 2)))
        points = np.linspace(low, high, steps + 1)
        simpson = np.where(np.arange(steps + 1) % 2, 4.0, 2.0)
        simpson[[0, -1]] = 1.0
        moved = (points[:, None] - self.points[None, :]) / step
        density = np.exp(-0.5 * moved * moved) @ self.weights / (step * math.sqrt(2.0 * math.pi))
        return _Walk(share, points, density * simpson * (high - low) / steps / 3.0)
