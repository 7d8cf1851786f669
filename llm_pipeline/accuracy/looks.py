"""The order in which items are scored, and after how many of them the gate looks.

order = evaluation_order({"gsm8k": clusters_of_its_documents}, seed=20260101)
plan = plan_looks({"gsm8k": 1319}, policy)
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal


@dataclass(frozen=True)
class LookPlan:
    """When the gate may decide; fixed before the first answer is seen.

    Attributes:
        method: `fixed` looks once, `group_sequential` spends its error over planned looks, `e_value` may look anywhere.
        sizes: Items asked of all tasks together until each look; rising, the last one is all that will be asked.
    """

    method: Literal["fixed", "group_sequential", "e_value"]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or any(low >= high for low, high in pairwise((-1, *self.sizes))):
            raise ValueError(f"looks after {self.sizes} items: the sizes must rise")
        if self.method == "fixed" and len(self.sizes) > 1:
            raise ValueError(f"a fixed sample has one look, not {len(self.sizes)}")

    @property
    def items(self) -> int:
        """Items that are scored if no look decides."""
        return self.sizes[-1]

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of all items that each look has seen."""
        return tuple(size / max(1, self.items) for size in self.sizes)


def evaluation_order(items: Mapping[str, Sequence[str]], seed: int) -> tuple[tuple[str, int], ...]:
    """The order in which to ask: random, yet every part from the start holds the tasks in proportion.

    Args:
        items: For each task the cluster of each document, by the document's number; an empty name is none.
        seed: Decides the order of each task, whatever other tasks there are.

    Returns:
        Task and number of every document. A cluster is not torn apart, so a part may be off proportion by one
        cluster a task.
    """
    placed = []
    for task, clusters in items.items():
        draw = random.Random(f"{seed}/{task}")  # noqa: S311 - an order that anyone can draw again
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
