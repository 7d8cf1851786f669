"""The evidence that a gate needs and will have: items of an accuracy gate, requests of the load gate. Pure.

Flips, the share of items that change either way, are not known before. 2, 5 and 8 % are what FP8, good and poor 4-bit
formats show; a gate that could not decide even at the fewest of them is a waste of whatever it costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_pipeline.accuracy.gate import TYPICAL_FLIPS, items_needed
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.loadtest.duration import SampleSize
from llm_pipeline.planning.task_pool import TaskItems

FLIPS = (0.02, 0.05, 0.08)
POWER = 0.9
ENOUGH_POWER = 0.8
"""Below this chance that a lossless model passes, the plan warns."""


class ItemsNeeded(Frozen):
    """Items at one share of flips, for a model that lost nothing.

    Attributes:
        flips: Share of items that change either way.
        pooled: Items of all tasks together that hold the margin with a power of 0.9.
        task: Items of each task with which all of them hold the task margin, with the same power.
    """

    flips: float
    pooled: int
    task: int


class GatePower(Frozen):
    """One accuracy gate before anything is spent on it.

    Attributes:
        gate: `accuracy` or `served_accuracy`.
        margin: Largest acceptable loss over all tasks, a fraction.
        task_margin: The same for each task.
        available: Items of all its tasks; None where they are not known.
        needed: By rising share of flips.
        warnings: What keeps it from deciding.
    """

    gate: str
    margin: float
    task_margin: float
    available: int | None
    needed: tuple[ItemsNeeded, ...]
    warnings: tuple[str, ...]


def gate_power(gate: str, tasks: Sequence[TaskItems], policy: AccuracyPolicy) -> GatePower:
    """What a gate needs, and what it has.

    Args:
        gate: Its name.
        tasks: What is asked; a group is one task.
        policy: When a loss is too much.
    """
    known = {task.name: task.items for task in tasks if task.items is not None}
    available = sum(known.values()) if len(known) == len(tasks) else None
    needed = tuple(
        ItemsNeeded(
            flips=flips,
            pooled=items_needed(policy.margin, flips, policy.confidence, POWER),
            # all tasks have to hold their margins at one look
            task=items_needed(policy.task_margin, flips, policy.confidence, POWER ** (1 / max(1, len(tasks)))),
        )
        for flips in FLIPS
    )
    if available is not None:
        warnings = [*_too_few(known, policy)]
    else:
        unknown = ", ".join(task.name for task in tasks if task.items is None)
        warnings = [f"how many items {unknown} have is not known here, so whether they suffice is not judged"]
    return GatePower(
        gate=gate,
        margin=policy.margin,
        task_margin=policy.task_margin,
        available=available,
        needed=needed,
        warnings=tuple(f"{gate}: {line}" for line in warnings),
    )


def _too_few(known: Mapping[str, int], policy: AccuracyPolicy) -> Iterator[str]:
    """What a model that lost nothing would hardly pass."""
    pool = sum(known.values())
    if pool < policy.minimum_items:
        yield f"{pool} items are fewer than minimum_items {policy.minimum_items}: it can only be INCONCLUSIVE"
    margins = [("all tasks together", pool, policy.margin), *((*task, policy.task_margin) for task in known.items())]
    for name, items, margin in margins:
        needed = items_needed(margin, TYPICAL_FLIPS, policy.confidence, ENOUGH_POWER)
        if items < needed:
            wide = 100 * margin * (needed / items) ** 0.5 if items else 50.0
            yield (
                f"{name}: {items} items are too few for a margin of {100 * margin:g} points: a model that lost nothing "
                f"passes in less than {100 * ENOUGH_POWER:.0f} % when {100 * TYPICAL_FLIPS:g} % flip; {needed} items "
                f"or a margin of {wide:.1f} points would do"
            )


def load_test_warnings(size: SampleSize) -> tuple[str, ...]:
    """What may keep the load gate from deciding; what must is refused (`loadtest/duration.py`)."""
    if size.requests >= size.needed_with_misses:
        return ()
    warning = (
        f"load_test: its {size.windows} windows have {size.requests} requests; {size.needed} are needed when none "
        f"misses, {size.needed_with_misses} when half of the tolerated share does, and more where windows differ"
    )
    return (warning,)
