"""The parts of the plan's table about evidence: what the gates, the load test and the canary can show, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_pipeline.base import text_table
from llm_pipeline.base.quantities import duration
from llm_pipeline.config.release import ExpectedScore, ResolvedRelease
from llm_pipeline.loadtest.sample_size import SampleSize
from llm_pipeline.planning.canary_power import (
    KIND_SHARE,
    POWER,
    WAVERING,
    CanaryPower,
    Caught,
    Parity,
    StepPower,
)
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
    header = ("gate", "margin", "items", "looks", "needed", "of each task")
    rows = [
        (
            gate.gate,
            f"{100 * gate.margin:g} / {100 * gate.task_margin:g} pt",
            _or_unknown(gate.available),
            _or_unknown(gate.looks),
            _joined(needed.pooled for needed in gate.needed),
            _joined(needed.task for needed in gate.needed),
        )
        for gate in gates
    ]
    return [
        f"evidence (items for a power of 0.9 when {flips} % flip and nothing is lost)",
        f"  {pool}",
        *aligned([header, *rows], 2),
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
    rare = f"stalls rarer than one in {duration(size.excluded_period_seconds)} will not be excluded"
    return [f"load test (requests of the confirmation at the workload's rate): {has}; needed {needed}; {rare}"]


def gpu_lines(cost: GpuCost) -> list[str]:
    """Peak memory and minutes of quantization, and minutes of scoring."""
    header = ("recipe", "calibration", "batch", "peak", "fits", "GPUs", "minutes")
    rows = [_recipe_row(recipe) for recipe in cost.recipes]
    scoring = "  scoring: not predicted, too little is known of a task"
    if cost.scoring_minutes is not None:
        minutes = _minutes(cost.scoring_minutes)
        scoring = f"  scoring: baseline {minutes} min, each recipe as long at most, and less where a look decides"
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


def canary_lines(power: CanaryPower) -> list[str]:
    """A row for each step and bake; nothing for a canary that takes all traffic at once."""
    if not power.steps:
        return []
    header = (
        "step",
        "bake",
        "requests",
        "errors caught",
        "slow caught",
        "outage ends",
        "errors no worse",
        "latency no worse",
    )
    rows = [row for step in power.steps for row in _rows(step, power)]
    title = (
        f"canary at {power.rate_per_second:g} requests/s (smallest rise that the comparison catches with a power of "
        f"{POWER:g}, if {_percent(power.error_share)} of stable's requests fail and {_percent(power.slow_share)} are "
        "slow; requests that prove it to be no worse, in half of all cases)"
    )
    return [title, *aligned([header, *rows], 1), *_assumed(power)]


def _assumed(power: CanaryPower) -> list[str]:
    """What the table cannot show: rare kinds of requests, servers that waver by themselves, and what answers say."""
    kinds = ", ".join(
        f"{_rise(step.kind_error_ratio, power.error_share)} at {step.percent:g} %" for step in power.steps
    )
    rare = (
        f"  errors caught in a kind of requests that is {_percent(KIND_SHARE)} of the traffic (streamed answers, say), "
        f"within the longest bake: {kinds}"
    )
    blocks = (
        f"  latencies are counted in blocks of {duration(power.block_seconds)}, of which at least four are needed, "
        "as far as stable does not vary as much by itself: that is learned before the first step and since, and the "
        "candidate is assumed to vary as stable does. Where the odds of a slow request vary by "
        f"{_percent(WAVERING)} for longer than a step, only a rise of the odds by x {power.wavering_ratio:.2g} is "
        "told from chance"
    )
    contents = (
        "  answers are compared by length, finish reason, repetition and characters, those over gRPC by length of time "
        "only; that fluent answers are wrong, or loops longer than 500 characters, is not seen"
    )
    return [rare, blocks, contents]


def _rows(step: StepPower, power: CanaryPower) -> list[tuple[str, ...]]:
    proof = (duration(step.outage_seconds), _parity(step.errors), _parity(step.slow))
    return [
        (f"{step.percent:g} %", *_caught(step.shortest, power), *proof),
        ("", *_caught(step.longest, power), "", "", ""),
    ]


def _caught(caught: Caught, power: CanaryPower) -> tuple[str, ...]:
    return (
        duration(caught.seconds),
        f"{caught.candidate_requests:,.3g}" if caught.candidate_requests < 100 else f"{caught.candidate_requests:,.0f}",  # noqa: PLR2004 - three digits
        _rise(caught.error_ratio, power.error_share),
        _rise(caught.slow_ratio, power.slow_share),
    )


def _rise(ratio: float | None, share: float) -> str:
    return "none" if ratio is None else f"x {ratio:.3g} ({_percent(ratio * share)})"


def _parity(parity: Parity | None) -> str:
    return "never" if parity is None else f"{parity.requests:,.0f}, {duration(parity.seconds)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1.0 else "100 %"


_HIGHEST_SHARE = 1.0


def expected_lines(expected: dict[str, ExpectedScore]) -> list[str]:
    """The range of each task, with its source; nothing where none is stated."""
    if not expected:
        return []
    rows = [(task, score_range(own), own.source) for task, own in expected.items()]
    return ["baseline (what it must score before anything is compared with it)", *aligned([*rows], 3)]


def expected_warnings(release: ResolvedRelease) -> tuple[str, ...]:
    """Tasks without a range, and ranges that look like percentages."""
    expected = release.baseline.expected
    found = []
    if missing := [task for task in release.evaluation.tasks if task not in expected]:
        found.append(
            f"baseline.expected states no range for {', '.join(missing)}: there a damaged source is found only if it "
            "is no better than guessing, or much worse than the release in production"
        )
    found += [
        f"baseline.expected: {task} goes up to {own.maximum:g}, and accuracies are shares: 0.8 for 80 %"
        for task, own in expected.items()
        if own.maximum > _HIGHEST_SHARE
    ]
    return tuple(found)


def score_range(expected: ExpectedScore) -> str:
    """A range for people: in percent, unless its metric is no share."""
    if expected.maximum > _HIGHEST_SHARE:
        return f"{expected.minimum:g} to {expected.maximum:g}"
    return f"{100 * expected.minimum:g} % to {100 * expected.maximum:g} %"
