"""The per-item losses of one comparison: the sample that every test of the accuracy gate looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FEW_CLUSTERS = 10
"""With fewer changed clusters than this nothing is known of how alike the items of a cluster are."""


@dataclass(frozen=True, eq=False)
class LossSample:
    """What the candidate lost on each item: baseline's score minus candidate's, from -1 to 1.

    Attributes:
        losses: One number an item.
        groups: The cluster's number of each item; None when every item stands for itself.
        graded: Some score is neither 0 nor 1.
        copies: How often each item counts: a sample `grown` to what it would be at a later look.
    """

    losses: NDArray[np.float64]
    groups: NDArray[np.intp] | None = None
    graded: bool = False
    copies: float = 1.0

    @cached_property
    def pairs(self) -> float:
        """Number of items."""
        return self.losses.size * self.copies

    @cached_property
    def lost(self) -> float:
        """Items on which the candidate scored less."""
        return int((self.losses > 0).sum()) * self.copies

    @cached_property
    def gained(self) -> float:
        """Items on which the candidate scored more."""
        return int((self.losses < 0).sum()) * self.copies

    @cached_property
    def mean(self) -> float:
        """Mean loss of an item."""
        return float(self.losses.mean())

    @cached_property
    def variance(self) -> float:
        """Variance of one item's loss, times what an item's likeness to its cluster costs."""
        return float(self.losses.var()) * self.design_effect

    @cached_property
    def independent(self) -> float:
        """How many clusters there are; how many items when there are none."""
        return self.copies * (self.losses.size if self.groups is None else int(self.groups.max()) + 1)

    @cached_property
    def design_effect(self) -> float:
        """By how much the clusters inflate the variance of the mean loss; never below 1.

        The cluster-robust variance (Liang and Zeger 1986; for evaluations: E. Miller, Adding Error Bars to Evals,
        arXiv 2411.00640) over the plain one. While few clusters have changed that ratio is a guess, and the largest
        possible one is taken: every cluster answers as one (Kish's sum of squared sizes over the items).
        """
        if self.groups is None:
            return 1.0
        sizes = np.bincount(self.groups)
        worst = float((sizes**2).sum() / sizes.sum())
        changed = np.count_nonzero(np.bincount(self.groups, weights=self.losses != 0))
        plain = float(self.losses.var())
        if changed < FEW_CLUSTERS or plain == 0.0:
            return worst
        excess = np.bincount(self.groups, weights=self.losses - self.losses.mean())
        robust = sizes.size / (sizes.size - 1) * float((excess**2).sum()) / self.losses.size
        return max(1.0, robust / plain)

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
