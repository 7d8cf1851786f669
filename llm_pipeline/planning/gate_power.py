"""Whether gates have the evidence that they need: items of accuracy gates, requests of load gate and canary. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_pipeline.accuracy.gate import TYPICAL_FLIPS, items_needed
from llm_pipeline.base.quantities import duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.policy import AccuracyPolicy, CanaryPolicy
from llm_pipeline.loadtest.duration import SampleSize
from llm_pipeline.planning.task_pool import TaskItems

POWER = 0.8
"""Below this chance that a lossless model passes, the plan warns."""


class GatePower(Frozen):
    """One accuracy gate before anything is spent on it.

    Attributes:
        gate: `accuracy` or `served_accuracy`.
        margin: Largest acceptable loss over all tasks, a fraction.
        task_margin: The same for each task.
        available: Items of all its tasks; None where they are not known.
        needed: Items of all tasks together with which a model that lost nothing passes in eight of ten cases, where
            as many items flip as good 4-bit formats show.
        warnings: What keeps it from deciding.
    """

    gate: str
    margin: float
    task_margin: float
    available: int | None
    needed: int
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
        needed=items_needed(policy.margin, TYPICAL_FLIPS, policy.confidence, POWER),
        warnings=tuple(f"{gate}: {line}" for line in warnings),
    )


def _too_few(known: Mapping[str, int], policy: AccuracyPolicy) -> Iterator[str]:
    """What a model that lost nothing would hardly pass."""
    pool = sum(known.values())
    if pool < policy.minimum_items:
        yield f"{pool} items are fewer than minimum_items {policy.minimum_items}: it can only be INCONCLUSIVE"
    margins = [("all tasks together", pool, policy.margin), *((*task, policy.task_margin) for task in known.items())]
    for name, items, margin in margins:
        needed = items_needed(margin, TYPICAL_FLIPS, policy.confidence, POWER)
        if items < needed:
            wide = 100 * margin * (needed / items) ** 0.5 if items else 50.0
            yield (
                f"{name}: {items} items are too few for a margin of {100 * margin:g} points: a model that lost nothing "
                f"passes in less than {100 * POWER:.0f} % when {100 * TYPICAL_FLIPS:g} % flip; {needed} items "
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


def canary_warnings(policy: CanaryPolicy, rate_per_second: float) -> tuple[str, ...]:
    """What keeps a step from deciding at the workload's rate."""
    needed = {percent: policy.minimum_requests / (rate_per_second * percent / 100) for percent in policy.steps_percent}
    late = {percent: seconds for percent, seconds in needed.items() if seconds > policy.maximum_bake_seconds}
    if not late:
        return ()
    found = ", ".join(f"{duration(seconds)} at {percent:g} %" for percent, seconds in late.items())
    warning = (
        f"canary: minimum_requests {policy.minimum_requests} take {found}: beyond maximum_bake_seconds "
        f"{policy.maximum_bake_seconds:g} a step ends undecided"
    )
    return (warning,)
