"""Sums of log likelihood ratios in which no single moment and no single client decides. Pure.

A block of time adds no more than so much: a smaller likelihood ratio keeps a supermartingale. And where clients are
told apart, each belongs to one of a few groups by its fingerprint, and the e-value is the smallest of those without
one of the groups. Each of these is an e-process of the other groups' traffic, so their smallest is below one; and
whatever a client does, there is one in which it has no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from llm_pipeline.base.records import Frozen

Logs = tuple[float, ...]

_LARGEST_EXPONENT = 700.0  # exp() of more overflows a double; 1e304 is certain enough


class Sums(Frozen):
    """One sum for each alternative.

    Attributes:
        total: Of all blocks that ended.
        without: The same without each group of clients that was seen.
        block: What the block that has begun adds, by group, before any limit.
    """

    total: Logs
    without: dict[str, Logs] = Field(default_factory=dict)
    block: dict[str, Logs] = Field(default_factory=dict)

    def add(self, gained: Sequence[float], group: str = "") -> Sums:
        """The sums after a group's traffic in the block that has begun."""
        before = self.block.get(group) or (0.0,) * len(self.total)
        return self.model_copy(update={"block": {**self.block, group: _plus(before, gained)}})

    def seen(self, group: str) -> Sums:
        """The sums after traffic of a group that adds nothing."""
        known = not group or group in self.without or group in self.block
        return self if known else self.add((0.0,) * len(self.total), group)

    def block_ends(self, most: float) -> Sums:
        """The sums after the block, which adds so much at most."""
        if not self.block:
            return self
        return Sums(total=self._with_block(None, most), without=self._without(most))

    def tempered(self, independence: float, most: float) -> float:
        """The e-value with a request's evidence raised to a power between 0 and 1.

        Requests of unknown clients form one group among the others.
        """
        without = self._without(most) if self.block else self.without
        sums = list(without.values()) if any(without) else [self._with_block(None, most)]
        return min(mean_of_exponentials([independence * log for log in logs]) for logs in sums)

    def _without(self, most: float) -> dict[str, Logs]:
        return {group: self._with_block(group, most) for group in {**self.without, **self.block}}

    def _with_block(self, left_out: str | None, most: float) -> Logs:
        """A group that was not seen before has no part in the total."""
        before = self.total if left_out is None else self.without.get(left_out, self.total)
        gained = np.zeros(len(before))
        for group, logs in self.block.items():
            if group != left_out:
                gained += logs
        return _plus(before, np.minimum(gained, most).tolist())


def mean_of_exponentials(logs: Sequence[float]) -> float:
    """Of natural logarithms; so large at most that a double holds it."""
    values = np.asarray(logs)
    top = float(values.max())
    return float(math.exp(min(top, _LARGEST_EXPONENT)) * np.exp(values - top).mean())


def _plus(one: Sequence[float], other: Sequence[float]) -> Logs:
    return tuple(float(a + b) for a, b in zip(one, other, strict=True))
