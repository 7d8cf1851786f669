"""A bet against a loss: evidence that stays right however often, and whenever, it is looked at.

A gambler who believes that the mean loss is below a limit stakes a share of what she has on every item. If the loss
were at the limit or above, her wealth could not be expected to grow, and the chance that it ever reaches 1 / alpha
would be at most alpha (J. Ville 1939). So wealth beyond 1 / alpha shows that the loss is below the limit, at any look.

Many gamblers with different stakes share one start; their mean wealth depends on which losses were seen, not on
their order. I. Waudby-Smith and A. Ramdas, Estimating means of bounded random variables by betting, Journal of the
Royal Statistical Society B 86 (2024) 1-27. Items of one cluster are one bet, which is right when the clusters are
independent, however alike their items are. An item that counts more than others is a bet on as much more: the mean
that is bet on is then the weighted one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.statistics.intervals import Bounds
from llm_pipeline.statistics.losses import LossSample

_STAKES = np.geomspace(0.03, 0.98, 40)
_BISECTIONS = 32
_WIDEST = 1.0 - 1e-9


def log_wealth(sample: LossSample, limit: float) -> float:
    """Logarithm of what was won by betting that the mean loss is below `limit`, from 1."""
    most = sample.largest * sample.heaviest
    if sample.groups is None:
        values, counts = np.unique(sample.counted, return_counts=True)
        gains = (limit - values) / (most - limit)
    else:
        sizes = np.bincount(sample.groups)
        gains = (sizes * limit - np.bincount(sample.groups, weights=sample.counted)) / (most - limit) / sizes.max()
        counts = np.ones_like(sizes)
    return float(log_mixture(gains, sample.copies * counts))


def log_mixture(gains: NDArray[np.float64], counts: NDArray[Any]) -> NDArray[np.float64]:
    """Logarithm of the gamblers' mean wealth.

    Args:
        gains: What a whole stake wins with each kind of item, shape (kinds,), or (..., kinds) where that differs;
            never below -1.
        counts: How often each kind was seen, shape (..., kinds).

    Returns:
        Shape (...).
    """
    stakes = np.log1p(gains[..., None] * _STAKES)
    logs = counts @ stakes if gains.ndim == 1 else np.einsum("...k,...ks->...s", counts, stakes)
    highest = logs.max(axis=-1)
    wealth: NDArray[np.float64] = highest + np.log(np.exp(logs - highest[..., None]).mean(axis=-1))
    return wealth


def wealth_needed(confidence: float) -> float:
    """Logarithm of the wealth that decides."""
    return -math.log(1.0 - confidence)


def clusters_to_decide(margin: float, confidence: float) -> int:
    """Clusters that show a loss to be below a margin if none of them changed: every bet of the whole stake is won."""
    return math.ceil(wealth_needed(confidence) / -math.log1p(-margin))


class BettingTest:
    """Bounds and p-values from bets; right at every look, at the whole level."""

    def bounds(self, sample: LossSample, confidence: float, lower_confidence: float | None = None) -> Bounds:
        """The mean loss with its one-sided bounds, each of which holds at all looks together."""
        if math.isinf(sample.largest):
            return Bounds(sample.mean, -math.inf, math.inf)
        lower = -_upper(sample.mirrored(), lower_confidence or confidence)
        return Bounds(sample.mean, lower, _upper(sample, confidence))

    def p_value(self, sample: LossSample, limit: float) -> float:
        """P-value of "the loss is at most `limit`": the inverse of the e-value of a bet on a larger loss."""
        if math.isinf(sample.largest) or limit >= sample.largest:
            return 1.0
        return math.exp(-max(0.0, log_wealth(sample.mirrored(), -limit)))


BETTING_TEST = BettingTest()


def _upper(sample: LossSample, confidence: float) -> float:
    enough = wealth_needed(confidence)
    most = sample.largest * sample.heaviest
    low, high = max(sample.mean, -_WIDEST * most), most
    for _ in range(_BISECTIONS):  # the higher the limit, the more a bet on less has won
        middle = (low + high) / 2.0
        if middle < _WIDEST * most and log_wealth(sample, middle) < enough:
            low = middle
        else:
            high = middle
    return min(high, sample.largest)
