"""The order in which items are scored, after how many of them the gate looks, and how many a margin needs.

    order = evaluation_order({"gsm8k": clusters_of_its_documents})
    plan = plan_looks(1319, policy)
    items_needed(margin=0.01, flips=0.05, confidence=0.95)  # 4,282: asked when no look decides earlier

Flips are unknown beforehand. What earlier releases of a model flipped is the best guess; without any, `TYPICAL_FLIPS`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.intervals import items_to_decide

ItemPlace = tuple[str, int]
"""A task and the number of a document in it."""


@dataclass(frozen=True)
class LookPlan:
    """When the gate may decide; fixed before the first answer is seen.

    Attributes:
        sizes: Items asked of all tasks together until each look; rising, the last one is all that will be asked.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or any(low >= high for low, high in pairwise((-1, *self.sizes))):
            raise ValueError(f"looks after {self.sizes} items: the sizes must rise")

    @property
    def items(self) -> int:
        """Items that are scored if no look decides."""
        return self.sizes[-1]

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Share of all items that each look has seen."""
        return tuple(size / max(1, self.items) for size in self.sizes)


def evaluation_order(items: Mapping[str, Sequence[str]]) -> tuple[ItemPlace, ...]:
    """The order in which to ask: random, yet every part from the start holds the tasks in proportion.

    Args:
        items: For each task the cluster of each document, by the document's number; an empty name is none.

    Returns:
        Task and number of every document. A cluster is not torn apart, so a part may be off proportion by one
        cluster a task.
    """
    placed = []
    for task, clusters in items.items():
        draw = random.Random(f"0/{task}")  # noqa: S311 - an order that anyone can draw again, whatever other tasks there are
        blocks = _blocks(clusters)
        draw.shuffle(blocks)
        start = 0
        for block in blocks:
            placed.append(((start + len(block) * draw.random()) / len(clusters), task, block))
            start += len(block)
    return tuple((task, number) for _, task, block in sorted(placed) for number in block)


def _blocks(clusters: Sequence[str]) -> list[list[int]]:
    blocks: dict[str | int, list[int]] = {}
    for number, cluster in enumerate(clusters):
        blocks.setdefault(cluster or number, []).append(number)
    return list(blocks.values())


TYPICAL_FLIPS = 0.05
"""Share of items that change either way, taken while nothing is measured: 1 to 2 % for FP8, 3 to 8 % for 4 bits."""


def items_needed(margin: float, flips: float, confidence: float, power: float = 0.9) -> int:
    """Items with which a model that lost nothing passes with the given power.

    `(z_confidence + z_power)^2 * flips / margin^2`: at 0.95 and 0.9, a margin of one point and flips of 2, 5 and 8 %,
    about 1,750, 4,300 and 6,900.

    Args:
        margin: Largest acceptable loss, a fraction above 0.
        flips: Share of items that change either way.
        confidence: Confidence of the gate's one-sided bound.
        power: Chance to pass.

    Raises:
        ValueError: The margin is not above 0.
    """
    needed = items_to_decide(flips, margin, confidence, power) if margin > 0.0 else None
    if needed is None:
        raise ValueError(f"no number of items can decide a margin of {margin}")
    return needed


def plan_looks(items: int, policy: AccuracyPolicy) -> LookPlan:
    """Even looks at so many items of all tasks together, none before the policy's smallest sample."""
    first = max(policy.minimum_items, math.ceil(items / policy.looks))
    if policy.looks == 1 or first >= items:
        return LookPlan((items,))
    step = (items - first) / (policy.looks - 1)
    return LookPlan(tuple(sorted({first + round(step * look) for look in range(policy.looks)})))
