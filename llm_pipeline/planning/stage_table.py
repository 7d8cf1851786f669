"""The part of the plan's table that lists the steps: what will be reused, and what the others take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from llm_pipeline.planning.cost_table import aligned
from llm_pipeline.planning.model import Plan
from llm_pipeline.planning.stage_cost import TotalCost
from llm_pipeline.planning.stage_graph import PlannedStage

_MINUTE, _HOUR = 60, 3600
_LONG = 120


def stage_lines(plan: Plan) -> list[str]:
    """One row for each stage and what becomes of it; subjects of which the same is to be said share a row."""
    header = ("stage", "of", "time", "GPU hours", plan.total.currency, "state", "why")
    rows = [_row(steps) for steps in _alike(plan.stages)]
    used = [column for column in range(len(header)) if any(row[column] for row in rows)]
    table = [[row[column] for column in used] for row in (header, *rows)]
    title = f"stages ({len(plan.stages)} steps)"
    return [title, *_compared(plan), *aligned(table, len(header)), *_sum(plan.total)]


def _compared(plan: Plan) -> list[str]:
    if plan.compared_with is None:
        return []
    seen = plan.compared_with
    when, commit = f"{seen.resolved_at:%Y-%m-%d %H:%M} UTC", seen.commit[:8]
    return [f"  compared with {seen.release_id} of {when}, if the model is still at {commit} and no tool changed"]


def _alike(stages: Sequence[PlannedStage]) -> list[list[PlannedStage]]:
    """Steps of one stage that are alike but for their subject, in the order of the first of them."""
    order = {stage.stage: number for number, stage in reversed([*enumerate(stages)])}
    ranked = sorted(stages, key=lambda step: order[step.stage])  # stable: subjects stay in their order
    return [list(group) for _, group in groupby(ranked, key=_said)]


def _said(step: PlannedStage) -> tuple[object, ...]:
    seconds = None if step.cost.seconds is None else round(step.cost.seconds)
    return step.stage, step.reuse, seconds, step.cost.basis


def _row(steps: Sequence[PlannedStage]) -> tuple[str, ...]:
    first = steps[0]
    due = first.reuse is None or first.reuse.outcome in ("computed", "always")
    return (
        first.stage,
        _subjects([step.subject for step in steps]),
        _time(first, several=len(steps) > 1) if due else "",
        _added([step.cost.gpu_hours if step.cost.gpus else None for step in steps], 3) if due else "",
        _added([step.cost.price for step in steps], 2) if due else "",
        first.reuse.outcome if first.reuse else "",
        first.reuse.why if first.reuse else "",
    )


def _subjects(names: Sequence[str]) -> str:
    """Subjects in one cell; canary steps of all targets that have the same ones together."""
    if not any(":" in name for name in names):
        return ", ".join(names)
    steps: dict[str, list[str]] = {}
    for target, _, percent in (name.partition(":") for name in names):
        steps.setdefault(target, []).append(percent)
    targets: dict[str, list[str]] = {}
    for target, percents in steps.items():
        targets.setdefault("/".join(percents), []).append(target)
    return ", ".join(f"{', '.join(alike)} at {percents} %" for percents, alike in targets.items())


def _time(step: PlannedStage, *, several: bool) -> str:
    cost = step.cost
    if cost.seconds is None:
        return ""
    each = " each" if several else ""
    basis = f"measured {cost.measurements}x" if cost.basis == "measured" else "model"
    return f"{_duration(cost.seconds)}{each}, {basis}"


def _duration(seconds: float) -> str:
    if seconds < _LONG:
        return f"{seconds:.0f} s" if seconds >= 1 else "<1 s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def _added(figures: Sequence[float | None], digits: int) -> str:
    known = [figure for figure in figures if figure is not None]
    return f"{sum(known):.{digits}f}" if known else ""


def _sum(total: TotalCost) -> list[str]:
    due = f"  everything due, with every recipe tried: {_duration(total.seconds)} one after another"
    if total.not_known:
        due += f", and {len(total.not_known)} steps of unknown time"
    if not total.gpu_hours:
        return [due]
    hours = ", ".join(f"{hours:.2f} h {name}" for name, hours in total.gpu_hours.items())
    price = f"{total.price:.2f} {total.currency}" if total.price is not None else "no gpu_hour_prices in the deployment"
    return [due, f"  GPUs: {hours}: {price}"]
