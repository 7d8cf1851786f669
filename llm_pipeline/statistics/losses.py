"""The per-item losses of one comparison: the sample that every test of the accuracy gate looks at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FEW_CLUSTERS = 10
"""With fewer changed clusters than this nothing is known of how alike the items of a cluster are."""
ENOUGH_CLUSTERS = 50
"""Student's t is trusted with so many clusters; of fewer, one that was lost as a whole may just not have been met.

Somewhat more are no proof either. Where 4 % of clusters are lost as wholes, none of 60 is in 9 % of evaluations, and
what is seen then is what a good model shows: a bound that refuses it refuses good models as often. A lean as if one
more cluster had been lost takes the power of unlike items in 60 clusters from 0.72 to 0 at a margin of one point."""


@dataclass(frozen=True, eq=False)
class LossSample:
    """What the candidate lost on each item: how much worse it scored than the baseline.

    Attributes:
        losses: One number an item.
        groups: The cluster's number of each item; None when every item stands for itself.
        graded: Some score is neither 0 nor 1.
        largest: The most that an item can lose or gain; infinite where scores have no bounds.
        weights: What each item counts, 1 on average, where items of small tasks count more; None for all alike.
        copies: How often each item counts: a sample `grown` to what it would be at a later look.
    """

    losses: NDArray[np.float64]
    groups: NDArray[np.intp] | None = None
    graded: bool = False
    largest: float = 1.0
    weights: NDArray[np.float64] | None = None
    copies: float = 1.0

    @cached_property
    def pairs(self) -> float:
        """Number of items."""
        return self.losses.size * self.copies

    @cached_property
    def counted(self) -> NDArray[np.float64]:
        """The losses, each as much as its item counts."""
        return self.losses if self.weights is None else self.losses * self.weights

    @property
    def heaviest(self) -> float:
        """What the item counts that counts most."""
        return 1.0 if self.weights is None else float(self.weights.max())

    @cached_property
    def changed(self) -> float:
        """Items on which the candidate scored otherwise."""
        return np.count_nonzero(self.losses) * self.copies

    @cached_property
    def lost(self) -> float:
        """Items on which the candidate scored less, weighted."""
        return self._weight_of(self.losses > 0)

    @cached_property
    def gained(self) -> float:
        """Items on which the candidate scored more, weighted."""
        return self._weight_of(self.losses < 0)

    @cached_property
    def mean(self) -> float:
        """Mean loss of an item."""
        return float(self.counted.mean())

    @cached_property
    def variance(self) -> float:
        """Variance of one item's loss, times what an item's likeness to its cluster costs."""
        return self._plain_variance * self.design_effect

    @cached_property
    def independent(self) -> float:
        """How many clusters there are; how many items when there are none."""
        return self.copies * (self.losses.size if self.groups is None else int(self.groups.max()) + 1)

    @cached_property
    def design_effect(self) -> float:
        """By how much clusters and weights inflate the variance of the mean loss; never below 1.

        The cluster-robust variance (Liang and Zeger 1986; for evaluations: E. Miller, Adding Error Bars to Evals,
        arXiv 2411.00640) over the plain one, at least what the weights cost if all tasks flip alike (L. Kish, Survey
        Sampling, 1965). While few clusters have changed that ratio is a guess, and the largest possible one is taken:
        every cluster answers as one (Kish's sum of squared sizes over the items), or the heaviest items changed.
        """
        if self.groups is None and self.weights is None:
            return 1.0
        least = 1.0 if self.weights is None else float((self.weights**2).mean())
        changed = np.count_nonzero(self._by_cluster(np.abs(self.losses)))
        if changed < FEW_CLUSTERS or self._plain_variance == 0.0:
            return self._likeness_at_worst if self.groups is not None else self.heaviest
        clusters = self._excess.size
        robust = clusters / (clusters - 1) * float((self._excess**2).sum()) / self.losses.size
        return max(least, robust / self._plain_variance)

    @property
    def has_few_clusters(self) -> bool:
        """Whether there are too few clusters for Student's t; unequal ones count as fewer equal ones.

        The effective number of clusters: A. V. Carter, K. T. Schnepel and D. G. Steigerwald, Asymptotic behavior of a
        t-test robust to cluster heterogeneity, Review of Economics and Statistics 99 (2017) 698-709.
        """
        return self.groups is not None and self.pairs / self._likeness_at_worst < ENOUGH_CLUSTERS

    @cached_property
    def asymmetry(self) -> float:
        """By how much rare large losses make the mean's distribution lean: third moment by variance, by items.

        Of bounded scores that stand for themselves it is what it would be had one more item been lost wholly: a sample
        in which the rare losses did not occur cannot tell of them. Never below 0: it can only widen a bound.
        """
        unseen = self.largest * self.heaviest if self.groups is None and math.isfinite(self.largest) else 0.0
        squares = float((self._excess**2).sum()) * self.copies + unseen**2
        cubes = float((self._excess**3).sum()) * self.copies + unseen**3
        return max(0.0, cubes / squares) / self.pairs if squares else 0.0

    @cached_property
    def _plain_variance(self) -> float:
        """Variance of one item's loss, as if items were independent and counted alike."""
        if self.weights is None:
            return float(self.losses.var())
        return float((self.weights * (self.losses - self.mean) ** 2).mean())

    @cached_property
    def _excess(self) -> NDArray[np.float64]:
        """What each cluster, or else each item, lost beyond the mean, weighted."""
        excess = self.losses - self.mean
        return self._by_cluster(excess if self.weights is None else excess * self.weights)

    @cached_property
    def _likeness_at_worst(self) -> float:
        """The design effect if every cluster answered as one."""
        sizes = self._by_cluster(np.ones(self.losses.size) if self.weights is None else self.weights)
        return float((sizes**2).sum() / sizes.sum())

    def _by_cluster(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values if self.groups is None else np.bincount(self.groups, weights=values).astype(float)

    def _weight_of(self, chosen: NDArray[np.bool_]) -> float:
        weight = np.count_nonzero(chosen) if self.weights is None else float(self.weights[chosen].sum())
        return weight * self.copies

    def mirrored(self) -> LossSample:
        """The same comparison seen from the candidate: its gain becomes the loss."""
        return replace(self, losses=-self.losses)

    def grown(self, factor: float) -> LossSample:
        """What the sample would be with so many times the items, were they like those seen."""
        return replace(self, copies=self.copies * factor)


def group_numbers(clusters: Sequence[str]) -> NDArray[np.intp] | None:
    """Number the clusters of items, where an empty name is a cluster of its own; None when no two items share one."""
    if not any(clusters):
        return None
    named = [f"c{name}" if name else f"i{number}" for number, name in enumerate(clusters)]
    if len(set(named)) == len(named):
        return None
    return np.unique(named, return_inverse=True)[1]
