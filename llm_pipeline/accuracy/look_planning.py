"""After how many items the gate looks: `auto` rehearses both methods on a lossless model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from llm_pipeline.accuracy.looks import LookPlan
from llm_pipeline.accuracy.rehearsal import parts_of, rehearse
from llm_pipeline.accuracy.task_groups import TaskGroup
from llm_pipeline.config.policy import AccuracyPolicy

_RUNS = 200
_AS_OFTEN = 0.05
"""Two methods that pass a lossless model this much alike differ by what they ask."""

_GROWTH = 1.15


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
