"""In which order items are asked, and after how many of them the gate looks.

order = evaluation_order({"gsm8k": clusters_of_its_documents}, seed=20260101)
plan = plan_looks({"gsm8k": 1319}, policy)
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from llm_pipeline.accuracy.task_groups import TaskGroup
from llm_pipeline.config.policy import AccuracyPolicy

_RUNS = 200
_AS_OFTEN = 0.05
"""Two methods that pass a lossless model this much alike differ by what they ask."""

_GROWTH = 1.15


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
        """Items that are asked if no look decides."""
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


def plan_looks(
    available: Mapping[str, int], policy: AccuracyPolicy, groups: Sequence[TaskGroup] = (), *, bounded: bool = True
) -> LookPlan:
    """Plan the looks of one evaluation.

    Args:
        available: Items of each task.
        policy: Its `maximum_items` caps what is asked; `auto` becomes the method by which a lossless model passes these
            tasks more often, or by which it is asked less where both pass it as often.
        groups: Tasks that are judged as one.
        bounded: Every score has bounds. Nothing can be bet on a loss without them: looks are planned then.
    """
    items = sum(available.values())
    if policy.maximum_items is not None:
        items = min(items, policy.maximum_items)
    if policy.method == "fixed" or (policy.method != "auto" and bounded):
        return _planned(policy.method, items, policy)
    if not bounded:
        return _planned("group_sequential", items, policy)
    from llm_pipeline.accuracy.rehearsal import parts_of, rehearse  # it reads plans

    plans = [_planned(method, items, policy) for method in ("group_sequential", "e_value")]
    if len(plans[1].sizes) == 1:
        return plans[0]
    looks, bets = (rehearse(parts_of(available, groups), plan, policy, runs=_RUNS) for plan in plans)
    if abs(looks.go - bets.go) <= _AS_OFTEN:
        return plans[bets.items < looks.items]
    return plans[bets.go > looks.go]


def _planned(method: Literal["fixed", "group_sequential", "e_value"], items: int, policy: AccuracyPolicy) -> LookPlan:
    if method == "e_value":
        return LookPlan(method, _growing(policy.minimum_items, items))
    looks = policy.looks if method == "group_sequential" else 1
    return LookPlan(method, _even(policy.minimum_items, items, looks))


def _even(smallest: int, items: int, looks: int) -> tuple[int, ...]:
    first = max(smallest, math.ceil(items / looks))
    if looks == 1 or first >= items:
        return (items,)
    step = (items - first) / (looks - 1)
    return tuple(sorted({first + round(step * look) for look in range(looks)}))


def _growing(smallest: int, items: int) -> tuple[int, ...]:
    sizes = []
    size = float(smallest)
    while size < items:
        sizes.append(int(size))
        size *= _GROWTH
    return (*sizes, items)
