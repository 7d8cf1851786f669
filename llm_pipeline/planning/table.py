"""The plan as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from llm_pipeline.base import text_table
from llm_pipeline.base.quantities import byte_size, duration
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.config.release import ExpectedScore, ResolvedRelease
from llm_pipeline.loadtest.duration import SampleSize
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.gate_power import GatePower
from llm_pipeline.planning.memory import MemoryFit
from llm_pipeline.planning.model import Plan
from llm_pipeline.planning.quantization_plan import GpuCost, RecipeCost
from llm_pipeline.planning.stage_cost import PlannedStage, TotalCost
from llm_pipeline.planning.target_plan import TargetPlan
from llm_pipeline.planning.task_pool import TaskItems

_GIGABYTE = 1e9


def indented_columns(rows: Sequence[Sequence[str]], numbers_from: int) -> list[str]:
    """Rows of cells as indented lines; columns from `numbers_from` on are set flush right."""
    return [f"  {line}" for line in text_table.aligned(rows, right=range(numbers_from, len(rows[0])))]


def gate_lines(tasks: Sequence[TaskItems], gates: Sequence[GatePower]) -> list[str]:
    """The items that each accuracy gate has, beside those that it needs."""
    pool = ", ".join(f"{task.name} {task.items if task.items is not None else '?'}" for task in tasks)
    header = ("gate", "margin", "items", "needed")
    rows = [
        (
            gate.gate,
            f"{100 * gate.margin:g} / {100 * gate.task_margin:g} pt",
            _or_unknown(gate.available),
            str(gate.needed),
        )
        for gate in gates
    ]
    return [
        "evidence (needed: items with which a recipe that lost nothing passes in eight of ten cases)",
        f"  {pool}",
        *indented_columns([header, *rows], 2),
    ]


def load_lines(size: SampleSize) -> list[str]:
    """The requests that the load gate needs to say GO, beside those that it has."""
    has = f"{size.requests} in {size.windows} windows, more where requests wait long for one another"
    needed = f"{size.needed} when none misses, {size.needed_with_misses} when half of the tolerated share does"
    return [f"load test (requests at the workload's rate): {has}; needed {needed}"]


def gpu_lines(cost: GpuCost) -> list[str]:
    """Peak memory and minutes of quantization, and minutes of scoring."""
    header = ("recipe", "calibration", "batch", "peak", "fits", "GPUs", "minutes")
    rows = [_recipe_row(recipe) for recipe in cost.recipes]
    scoring = "  scoring: not predicted, too little is known of a task"
    if cost.scoring_minutes is not None:
        minutes = _minutes(cost.scoring_minutes)
        scoring = f"  scoring: baseline {minutes} min, each recipe as long at most, and less where a look decides"
    title = f"quantization on {cost.count} x {cost.accelerator}, {cost.capacity / _GIGABYTE:.0f} GB each (predicted)"
    return [title, *indented_columns([header, *rows], 2), scoring]


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


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


_HIGHEST_SHARE = 1.0


def expected_lines(expected: dict[str, ExpectedScore]) -> list[str]:
    """The range of each task, with its source; nothing where none is stated."""
    if not expected:
        return []
    rows = [(task, score_range(own), own.source) for task, own in expected.items()]
    return ["baseline (what it must score before anything is compared with it)", *indented_columns([*rows], 3)]


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


def stage_lines(plan: Plan) -> list[str]:
    """A row for each stage and time; subjects with equal cells share one."""
    header = ("stage", "of", "time", "GPU hours", plan.total.currency)
    rows = [_row(steps) for steps in _alike(plan.stages)]
    used = [column for column in range(len(header)) if any(row[column] for row in rows)]
    table = [[row[column] for column in used] for row in (header, *rows)]
    return [f"stages ({len(plan.stages)} steps)", *indented_columns(table, len(header)), *_sum(plan.total)]


def _alike(stages: Sequence[PlannedStage]) -> list[list[PlannedStage]]:
    """Steps of one stage that are alike but for their subject, in the order of the first of them."""
    order = {stage.stage: number for number, stage in reversed([*enumerate(stages)])}
    ranked = sorted(stages, key=lambda step: order[step.stage])  # stable: subjects stay in their order
    return [list(group) for _, group in groupby(ranked, key=_said)]


def _said(step: PlannedStage) -> tuple[object, ...]:
    seconds = None if step.cost.seconds is None else round(step.cost.seconds)
    return step.stage, seconds, step.cost.basis


def _row(steps: Sequence[PlannedStage]) -> tuple[str, ...]:
    return (
        steps[0].stage,
        _subjects([step.subject for step in steps]),
        _time(steps[0], several=len(steps) > 1),
        _added([step.cost.gpu_hours if step.cost.gpus else None for step in steps], 3),
        _added([step.cost.price for step in steps], 2),
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
    return f"{duration(cost.seconds)}{each}, {basis}"


def _added(figures: Sequence[float | None], digits: int) -> str:
    known = [figure for figure in figures if figure is not None]
    return f"{sum(known):.{digits}f}" if known else ""


def _sum(total: TotalCost) -> list[str]:
    due = f"  at most, with every recipe tried and nothing reused: {duration(total.seconds)} one after another"
    if total.not_known:
        due += f", and {len(total.not_known)} steps of unknown time"
    if not total.gpu_hours:
        return [due]
    hours = ", ".join(f"{hours:.2f} h {name}" for name, hours in total.gpu_hours.items())
    price = f"{total.price:.2f} {total.currency}" if total.price is not None else "no gpu_hour_prices in the deployment"
    return [due, f"  GPUs: {hours}: {price}"]


_HEADER = ("recipe", "format", "legal", "weights", "KV wanted", "KV free", "fits", "max batch")
_NUMBERS_FROM = 3


def format_plan(plan: Plan) -> str:
    """The plan as lines of text, ending with a newline."""
    sections = [
        _headline(plan),
        stage_lines(plan),
        *(_target(target, plan.ladders[target.name]) for target in plan.targets),
        expected_lines(plan.expected),
        gate_lines(plan.tasks, plan.gates),
        load_lines(plan.load_test),
        gpu_lines(plan.gpus) if plan.gpus else [],
        _disk(plan),
    ]
    if plan.warnings:
        sections.append(["warnings", *(f"  - {warning}" for warning in plan.warnings)])
    return "\n".join("\n".join(map(one_line, section)) + "\n" for section in sections if section)


def _headline(plan: Plan) -> list[str]:
    size = "size not known"
    if facts := plan.facts:
        size = f"{_count(facts.parameters)} parameters, {byte_size(facts.stored_bytes)}"
        if facts.is_mixture:
            size += f", {_count(facts.active_parameters)} active"
        if facts.stored_format:
            size += f", quantized already ({facts.stored_format})"
    return [
        f"plan of {plan.release}",
        f"  model       {plan.model}@{plan.revision}, {plan.dtype}, {size}",
        *_model_lines(plan.facts),
        f"  deployment  {plan.deployment}",
        *([f"  otherwise   {plan.overrides}"] if plan.overrides else []),
    ]


def _model_lines(facts: ModelFacts | None) -> list[str]:
    """The model, and where its facts come from."""
    if facts is None:
        return []
    kept = f"{2 * facts.kv_elements_per_token:,} bytes of KV cache a token at 16 bit"
    if facts.state_bytes:
        kept += f" and {byte_size(facts.state_bytes)} of state a sequence"
    return [
        f"  judged as   {facts.model_type}, {facts.layers} layers, {facts.context_length:,} tokens of context, {kept}",
        f"  judged by   {facts.origin}",
    ]


def _target(target: TargetPlan, ladder: Sequence[str]) -> list[str]:
    device = target.accelerator
    if target.accelerators:
        device = f"{target.accelerators} x {target.accelerator} ({target.architecture})"
    runtime = " ".join(part for part in (target.engine, target.runtime_version) if part)
    lines = [f"target {target.name}: {device}, {runtime}"]
    if target.container:
        lines.append(f"  {target.container}@{target.digest}" if target.digest else f"  {target.container}, not pinned")
        lines[-1] += f", driver {target.driver}" if target.driver else ""
    rows = [
        (
            recipe.recipe,
            recipe.stored_format or recipe.weights,
            "yes" if recipe.legal else "NO",
            *_memory(recipe.memory),
        )
        for recipe in target.recipes
    ]
    lines += indented_columns([_HEADER, *rows], _NUMBERS_FROM)
    lines += [f"  {r.recipe}: {r.reason} -> {r.nearest}" for r in target.recipes if not r.legal]
    return [*lines, f"  ladder: {', '.join(ladder)}"] if len(ladder) > 1 else lines


def _memory(fit: MemoryFit | None) -> tuple[str, ...]:
    if fit is None:
        return ("-",) * (len(_HEADER) - _NUMBERS_FROM)
    fits = "yes" if fit.fits else "NO"
    kept = (fit.kv_wanted, fit.kv_available)
    return (byte_size(fit.weights), *map(byte_size, kept), fits, str(fit.largest_batch))


def _disk(plan: Plan) -> list[str]:
    if plan.disk is None:
        return []
    need, shared = plan.disk.need, ", same file system" if plan.disk.one_file_system else ""
    free = "in S3" if plan.disk.free_store is None else f"of {byte_size(plan.disk.free_store)} free"
    parts = f"download {byte_size(need.download)}, recipes {byte_size(need.recipes)}"
    return [
        "disk (at most, when nothing of it exists yet)",
        f"  store  {byte_size(need.store)} {free} ({parts}, engines {byte_size(need.engines)})",
        f"  work   {byte_size(need.work)} of {byte_size(plan.disk.free_work)} free{shared}",
    ]


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.2f} M"  # noqa: PLR2004 - from 0.1 bn on
