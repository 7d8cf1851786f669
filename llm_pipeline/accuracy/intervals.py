"""Confidence bounds of a paired difference, and of a single accuracy; pure functions of counts and numbers.

Every bound is one-sided at the stated confidence, so a lower and an upper one at 0.95 together are a 90 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

FEW_CHANGES = 20
"""Below this many changed items a mean's normal approximation is not trusted for graded scores."""

_BISECTIONS = 60
_NORMAL = NormalDist()
_WIDEST = 1.0 - 1e-12


@dataclass(frozen=True)
class Bounds:
    """An estimate between its one-sided bounds, all fractions."""

    estimate: float
    lower: float
    upper: float


def tango_statistic(lost: int, gained: int, pairs: int, loss: float) -> float:
    """Tango's score statistic for the hypothesis that the paired difference of proportions is `loss`.

    Source: T. Tango, Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design, Statistics in Medicine 17 (1998) 891-908. Positive when more was lost than `loss` says.
    """
    linear = -(lost + gained) + loss * (2 * pairs - lost + gained)
    constant = -gained * loss * (1.0 - loss)
    root = math.sqrt(max(0.0, linear * linear - 8.0 * pairs * constant))
    gained_share = max(0.0, (root - linear) / (4.0 * pairs))
    variance = pairs * (2.0 * gained_share + loss * (1.0 - loss))
    excess = lost - gained - pairs * loss
    if variance <= 0.0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)


def tango_upper(lost: int, gained: int, pairs: int, confidence: float) -> float:
    """One-sided upper bound of the loss `(lost - gained) / pairs`, by inverting Tango's score test.

    With nothing gained the difference is a plain proportion of lost items, for which the score bound is a little
    too low (2.7 / pairs where the exact one is 3.0 / pairs); there the exact Clopper-Pearson bound is taken.
    """
    if gained == 0:
        return clopper_pearson_upper(lost, pairs, confidence)
    quantile = _NORMAL.inv_cdf(confidence)
    estimate = (lost - gained) / pairs
    if estimate >= _WIDEST or tango_statistic(lost, gained, pairs, _WIDEST) > -quantile:
        return 1.0
    low, high = max(estimate, -_WIDEST), _WIDEST
    for _ in range(_BISECTIONS):  # the statistic falls as the assumed loss rises
        middle = (low + high) / 2.0
        if tango_statistic(lost, gained, pairs, middle) > -quantile:
            low = middle
        else:
            high = middle
    return high


def _t_quantile(confidence: float, degrees: int) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, confidence))


def tango_bounds(lost: int, gained: int, pairs: int, confidence: float) -> Bounds:
    """The loss `(lost - gained) / pairs` with its one-sided bounds.

    Raises:
        ValueError: There are no pairs, or more flips than pairs.
    """
    if pairs < 1 or min(lost, gained) < 0 or lost + gained > pairs:
        raise ValueError(f"{lost} lost and {gained} gained of {pairs} pairs")
    return Bounds(
        estimate=(lost - gained) / pairs,
        lower=-tango_upper(gained, lost, pairs, confidence),
        upper=tango_upper(lost, gained, pairs, confidence),
    )


def clopper_pearson_upper(events: int, trials: int, confidence: float) -> float:
    """Exact one-sided upper bound of a proportion (Clopper and Pearson 1934)."""
    from scipy import special

    return 1.0 if events >= trials else float(special.betaincinv(events + 1, trials - events, confidence))


def graded_bounds(losses: Sequence[float], confidence: float) -> Bounds:
    """The mean of per-item losses in [-1, 1] with one-sided bounds: paired t, or exact when few items changed.

    With fewer than `FEW_CHANGES` changed items the spread says little about the tail. Then each changed item
    counts as a whole one: a mean loss is at most the share of items that lost anything, whose exact bound is taken.

    Raises:
        ValueError: There are no losses.
    """
    values = np.asarray(losses, dtype=float)
    if values.size == 0:
        raise ValueError("no losses")
    estimate = float(values.mean())
    lost, gained = int((values > 0).sum()), int((values < 0).sum())
    if lost + gained < FEW_CHANGES:
        upper = clopper_pearson_upper(lost, values.size, confidence)
        return Bounds(estimate, -clopper_pearson_upper(gained, values.size, confidence), upper)
    reach = _t_quantile(confidence, values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Bounds(estimate, max(-1.0, estimate - reach), min(1.0, estimate + reach))


def wilson_bounds(right: int, items: int, confidence: float) -> Bounds:
    """An accuracy with its one-sided score bounds (Wilson 1927)."""
    quantile = _NORMAL.inv_cdf(confidence)
    share, weight = right / items, quantile * quantile / items
    centre = (share + weight / 2.0) / (1.0 + weight)
    reach = quantile * math.sqrt(share * (1.0 - share) / items + weight / (4.0 * items)) / (1.0 + weight)
    return Bounds(share, max(0.0, centre - reach), min(1.0, centre + reach))


def mean_bounds(scores: Sequence[float], confidence: float) -> Bounds:
    """A mean score in [0, 1] with its one-sided bounds: Wilson for right and wrong, Student's t for graded scores."""
    values = np.asarray(scores, dtype=float)
    if np.isin(values, (0.0, 1.0)).all():
        return wilson_bounds(int(values.sum()), values.size, confidence)
    mean = float(values.mean())
    reach = _t_quantile(confidence, values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Bounds(mean, max(0.0, mean - reach), min(1.0, mean + reach))


def items_to_decide(variance: float, distance: float, confidence: float, power: float = 0.9) -> int | None:
    """Paired items with which a loss this far from its limit is decided, with the given power.

    `n = (z_confidence + z_power)^2 * variance / distance^2`: 8.56 flips / margin^2 at 0.95 and 0.9. The variance
    is that of one item's loss: about the share of flipped items.

    Returns:
        The number, or None when the loss sits on the limit and no number of items decides.
    """
    if distance == 0.0:
        return None
    factor = (_NORMAL.inv_cdf(confidence) + _NORMAL.inv_cdf(power)) ** 2
    without_flips = math.log(1.0 - confidence) / math.log1p(-min(abs(distance), 0.999))
    return math.ceil(max(factor * variance / distance**2, without_flips))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values, in the order given: comparing each with alpha controls the family-wise error."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
