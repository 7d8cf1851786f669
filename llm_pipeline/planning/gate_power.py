"""The evidence that a gate needs and will have: items of an accuracy gate, requests of the load gate. Pure.

Flips, the share of items that change either way, are not known before. 2, 5 and 8 % are what FP8, good and poor 4-bit
formats show; a gate that could not decide even at the fewest of them is a waste of whatever it costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_pipeline.accuracy.error_budget import ladder_error, policy_at, share_of_error
from llm_pipeline.accuracy.gate import is_only_for_harm
from llm_pipeline.accuracy.looks import TYPICAL_FLIPS, LookPlan, expected_items, items_needed
from llm_pipeline.accuracy.rehearsal import Rehearsal, parts_of, plan_looks, rehearse
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.loadtest.sample_size import SampleSize
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
        expected: Items that are probably asked until the gate decides; None where the pool is not known.
        go: The chance that it passes, over its tasks, sizes and looks; None where the pool is not known.
    """

    flips: float
    pooled: int
    task: int
    expected: int | None
    go: float | None = None


class GatePower(Frozen):
    """One accuracy gate before anything is spent on it.

    Attributes:
        gate: `accuracy` or `served_accuracy`.
        margin: Largest acceptable loss over all tasks, a fraction.
        task_margin: The same for each task.
        available: Items of all its tasks, capped by the policy; None where they are not known.
        method: How it may decide early; None where the items are not known.
        looks: How often it looks at most; None where the items are not known.
        needed: By rising share of flips.
        ladder_error: The chance, at most, that some recipe of the ladder passes if each loses exactly the margin.
        warnings: What keeps it from deciding.
    """

    gate: str
    margin: float
    task_margin: float
    available: int | None
    method: str | None
    looks: int | None
    needed: tuple[ItemsNeeded, ...]
    ladder_error: float = 0.0
    warnings: tuple[str, ...]


def gate_power(gate: str, tasks: Sequence[TaskItems], policy: AccuracyPolicy, rungs: int = 1) -> GatePower:
    """What the first gate of a candidate needs, what it has, and how often it would pass a lossless one.

    Args:
        gate: Its name.
        tasks: What is asked; a group is one task.
        policy: When a loss is too much.
        rungs: Recipes that have such a gate.
    """
    own = policy_at(policy, share_of_error(policy, 1, rungs))
    known = {task.name: task.items for task in tasks if task.items is not None}
    plan = plan_looks(known, own) if len(known) == len(tasks) else None
    rehearsals = [rehearse(parts_of(known), plan, own, flips=flips) if plan else None for flips in FLIPS]
    needed = tuple(
        ItemsNeeded(
            flips=flips,
            pooled=items_needed(policy.margin, flips, own.confidence, POWER),
            # all tasks have to hold their margins at one look
            task=items_needed(policy.task_margin, flips, own.confidence, POWER ** (1 / max(1, len(tasks)))),
            expected=expected_items(policy.margin, flips, own.confidence, plan) if plan else None,
            go=rehearsed.go if rehearsed else None,
        )
        for flips, rehearsed in zip(FLIPS, rehearsals, strict=True)
    )
    warnings = [*_obstacles(plan, known, tasks, own, needed[0])]
    if plan and (typical := rehearsals[FLIPS.index(TYPICAL_FLIPS)]) and typical.go < ENOUGH_POWER:
        warnings.append(_improbable(typical, known, plan, own))
    return GatePower(
        gate=gate,
        margin=policy.margin,
        task_margin=policy.task_margin,
        available=plan.items if plan else None,
        method=plan.method if plan else None,
        looks=len(plan.sizes) if plan else None,
        needed=needed,
        ladder_error=ladder_error(policy, rungs),
        warnings=tuple(f"{gate}: {line}" for line in warnings),
    )


def _improbable(rehearsed: Rehearsal, known: Mapping[str, int], plan: LookPlan, policy: AccuracyPolicy) -> str:
    """That a lossless model would hardly pass, why, and what to change."""
    chance = f"a model that lost nothing passes in about {100 * rehearsed.go:.0f} % when {100 * TYPICAL_FLIPS:g} % flip"
    auto = policy.model_copy(update={"method": "auto"})
    if policy.method != "auto" and plan_looks(known, auto).method != plan.method:
        return f"{chance}: method {plan.method} does not suit these tasks; use `auto`"
    task, margin = rehearsed.failing, policy.task_margin
    items = known.get(task, plan.items)
    if not task or items >= items_needed(margin, TYPICAL_FLIPS, policy.confidence, POWER):
        margin, task, items = policy.margin, "the pool", plan.items
    needed = items_needed(margin, TYPICAL_FLIPS, policy.confidence, POWER)
    wide = 100 * margin * (needed / items) ** 0.5
    ways = [f"{needed} items" if needed > items else "more items", f"a margin of {max(wide, 100 * margin):.1f} points"]
    if task in known and policy.small_tasks == "prove":
        ways.append("small_tasks: harm_only")
    return f"{chance}: {task} has {items} items for its margin of {100 * margin:g}; {' or '.join(ways)} would help"


def _obstacles(
    plan: LookPlan | None,
    known: Mapping[str, int],
    tasks: Sequence[TaskItems],
    policy: AccuracyPolicy,
    fewest: ItemsNeeded,
) -> Iterator[str]:
    if plan is None:
        unknown = ", ".join(task.name for task in tasks if task.items is None)
        yield f"how many items {unknown} have is not known here, so whether they suffice is not judged"
    elif plan.items < policy.minimum_items:
        yield f"{plan.items} items are fewer than minimum_items {policy.minimum_items}: it can only be INCONCLUSIVE"
    elif plan.items < fewest.pooled:
        yield _too_few(f"{plan.items} items", policy.margin, fewest.flips, fewest.pooled)
    lenient = {name for name in known if is_only_for_harm(name, known, policy)}
    small = {name: items for name, items in known.items() if items < fewest.task and name not in lenient}
    for name, items in small.items():
        yield _too_few(f"{name} has {items} items and", policy.task_margin, fewest.flips, fewest.task)


def _too_few(what: str, margin: float, flips: float, needed: int) -> str:
    points, changed = f"{100 * margin:g} points", f"{100 * flips:g} %"
    verb = "" if what.endswith("and") else " are too few:"
    return f"{what}{verb} a margin of {points} needs {needed} already when {changed} flip, so it may never decide"


def load_test_warnings(size: SampleSize) -> tuple[str, ...]:
    """What may keep the load gate from deciding; what must is refused (`loadtest/sample_size.py`)."""
    needed, first = size.needed_with_misses, size.first_look
    if first >= needed:
        return ()
    rest = f"up to {size.last_look} with its extensions" if size.last_look > first else "and no extension is allowed"
    warning = (
        f"load_test: its confirmation has {first} requests, {rest}; {size.needed} are needed when none misses, "
        f"{needed} when half of the tolerated share does, and more where requests wait for one another"
    )
    return (warning,)
