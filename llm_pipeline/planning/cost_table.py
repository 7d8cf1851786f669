"""The parts of the plan's table that say what evidence and GPUs will cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_pipeline.base import text_table
from llm_pipeline.loadtest.sample_size import SampleSize
from llm_pipeline.loadtest.stalls import in_words
from llm_pipeline.planning.evaluation_data import PlannedData
from llm_pipeline.planning.gate_power import GatePower
from llm_pipeline.planning.quantization_plan import GpuCost, RecipeCost
from llm_pipeline.planning.task_pool import TaskItems

_GIGABYTE = 1e9


def aligned(rows: Sequence[Sequence[str]], numbers_from: int) -> list[str]:
    """Rows of cells as indented lines; columns from `numbers_from` on are set flush right."""
    return [f"  {line}" for line in text_table.aligned(rows, right=range(numbers_from, len(rows[0])))]


def gate_lines(tasks: Sequence[TaskItems], gates: Sequence[GatePower]) -> list[str]:
    """What each accuracy gate needs, by share of flips, beside what it has."""
    pool = ", ".join(f"{task.name} {task.items if task.items is not None else '?'}" for task in tasks)
    flips = "/".join(f"{100 * needed.flips:g}" for needed in gates[0].needed)
    header = ("gate", "margin", "items", "looks", "needed", "of each task", "expected", "GO")
    rows = [
        (
            gate.gate,
            f"{100 * gate.margin:g} / {100 * gate.task_margin:g} pt",
            _or_unknown(gate.available),
            f"{gate.looks} {gate.method}" if gate.method else "?",
            _joined(needed.pooled for needed in gate.needed),
            _joined(needed.task for needed in gate.needed),
            _joined(needed.expected for needed in gate.needed),
            "/".join("?" if needed.go is None else f"{100 * needed.go:.0f} %" for needed in gate.needed),
        )
        for gate in gates
    ]
    return [
        f"evidence (items for a power of 0.9 when {flips} % flip and nothing is lost; GO: how often that passes)",
        f"  {pool}",
        *aligned([header, *rows], 2),
        f"  if each recipe lost exactly the margin, one would pass in at most {100 * gates[0].ladder_error:.1f} %",
    ]


def data_lines(data: Sequence[PlannedData]) -> list[str]:
    """The data sets that the tasks read."""
    rows = [(one.name, one.revision, one.commit[:12] if one.commit else "?", ", ".join(one.tasks)) for one in data]
    return ["evaluation data", *aligned([("data set", "revision", "commit", "tasks"), *rows], 4)] if rows else []


def load_lines(size: SampleSize) -> list[str]:
    """The requests that the load gate needs to say GO, beside those that it has."""
    has = (
        f"{size.first_look}, extended up to {size.last_look}"
        if size.last_look > size.first_look
        else f"{size.first_look}"
    )
    needed = f"{size.needed} when none misses, {size.needed_with_misses} when half of the tolerated share does"
    rare = f"stalls rarer than one in {in_words(size.excluded_period_seconds)} will not be excluded"
    return [f"load test (requests of the confirmation at the workload's rate): {has}; needed {needed}; {rare}"]


def gpu_lines(cost: GpuCost) -> list[str]:
    """Peak memory and minutes of quantization, and minutes of scoring."""
    header = ("recipe", "calibration", "batch", "peak", "fits", "GPUs", "minutes")
    rows = [_recipe_row(recipe) for recipe in cost.recipes]
    scoring = "  scoring: not predicted, too little is known of a task"
    if cost.scoring_minutes is not None and cost.expected_minutes is not None:
        scoring = (
            f"  scoring: baseline {_minutes(cost.scoring_minutes)} min, "
            f"each recipe {_minutes(cost.expected_minutes)} min at 5 % flips, {_minutes(cost.scoring_minutes)} at most"
        )
    title = f"quantization on {cost.count} x {cost.accelerator}, {cost.capacity / _GIGABYTE:.0f} GB each (predicted)"
    return [title, *aligned([header, *rows], 2), scoring]


def _recipe_row(recipe: RecipeCost) -> tuple[str, ...]:
    return (
        recipe.recipe,
        f"{recipe.samples} x {recipe.tokens}" if recipe.samples else "none",
        str(recipe.batch) if recipe.batch else "-",
        f"{recipe.peak.total / _GIGABYTE:.1f} GB",
        str(recipe.largest_batch) if recipe.samples else "-",
        _or_unknown(recipe.gpus_needed),
        _minutes(recipe.minutes),
    )


def _minutes(minutes: float | None) -> str:
    return "-" if minutes is None else f"{minutes:.1f}"


def _joined(numbers: Iterable[int | None]) -> str:
    return "/".join(map(_or_unknown, numbers))


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)
