"""The plan as data: what a release will do, on what, and what is known to stand in its way; and as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from llm_pipeline.base import text_table
from llm_pipeline.base.quantities import byte_size, duration
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.stage_cost import PlannedStage, TotalCost
from llm_pipeline.planning.target_plan import TargetPlan
from llm_pipeline.planning.task_pool import TaskItems


class DiskPlan(Frozen):
    """Disk that a release needs when nothing of it exists yet, and disk that is free, in bytes.

    Attributes:
        download: The model as published.
        recipes: All quantized checkpoints.
        engines: Engines that hold the weights, and their model repositories, if the largest recipe is chosen.
        work: The largest of them once more, in the work directory while it is made.
        free_store: Free space of the store; None where it is not on this machine's file systems.
        free_work: Free space of the work directory.
        one_file_system: Store and work share the same free space.
    """

    download: int
    recipes: int
    engines: int
    work: int
    free_store: int | None
    free_work: int
    one_file_system: bool

    @property
    def store(self) -> int:
        """What the artifact store must hold."""
        return self.download + self.recipes + self.engines

    def problems(self) -> tuple[str, ...]:
        """What does not fit, one line each."""
        if self.one_file_system:
            return _short("store and work_root", self.store + self.work, self.free_work)
        short = () if self.free_store is None else _short("store", self.store, self.free_store)
        return (*short, *_short("work_root", self.work, self.free_work))


class Plan(Frozen):
    """What `llm-pipeline plan` found.

    Attributes:
        config: The release config's file.
        revision: Of the model, as this run has it.
        overrides: What else the run has otherwise than the config says, in words; empty for nothing.
        facts: The model; None where nothing of it was to be read, and the release config states no sizes.
        stages: Every step, in order.
        total: What all steps take that will be computed.
        disk: None where the model's sizes are not known.
        ladders: Names of the recipes that are legal on each target, cheapest first.
        tasks: The tasks that are scored on the checkpoint.
        warnings: Nothing of this stops the release; all of it deserves a look.
    """

    config: str
    release: str
    model: str
    revision: str
    overrides: str = ""
    dtype: str
    deployment: str
    facts: ModelFacts | None
    stages: tuple[PlannedStage, ...]
    total: TotalCost
    targets: tuple[TargetPlan, ...]
    disk: DiskPlan | None
    ladders: dict[str, tuple[str, ...]]
    tasks: tuple[TaskItems, ...]
    warnings: tuple[str, ...]


def _short(what: str, need: int, free: int) -> tuple[str, ...]:
    return (f"{what}: {byte_size(need)} needed, {byte_size(free)} free",) if need > free else ()


def indented_columns(rows: Sequence[Sequence[str]], numbers_from: int) -> list[str]:
    """Rows of cells as indented lines; columns from `numbers_from` on are set flush right."""
    return [f"  {line}" for line in text_table.aligned(rows, right=range(numbers_from, len(rows[0])))]


def expected_warnings(release: ResolvedRelease) -> Iterator[str]:
    """Tasks without a range."""
    expected = release.baseline.expected
    if missing := [task for task in release.evaluation.tasks if task not in expected]:
        yield (
            f"baseline.expected states no range for {', '.join(missing)}: there a damaged source is found only if it "
            "is no better than guessing, or much worse than the release in production"
        )


def stage_lines(plan: Plan) -> list[str]:
    """A row for each stage and time; subjects with equal cells share one."""
    order = {stage.stage: number for number, stage in reversed([*enumerate(plan.stages)])}
    # Stable: subjects stay in their order, but for steps of canaries, whose times go down as their shares go up.
    ranked = sorted(plan.stages, key=lambda one: (order[one.stage], -(one.seconds or 0) * (one.stage == "canary")))
    rows = [("stage", "of", "time", "GPU hours", plan.total.currency)]
    for _, group in groupby(ranked, key=lambda step: (step.stage, round(step.seconds or -1), step.basis)):
        steps = list(group)
        first, taken = steps[0], ""
        if first.seconds is not None:
            basis = f"measured {first.measurements}x" if first.basis == "measured" else "model"
            taken = f"{duration(first.seconds)}{' each' if len(steps) > 1 else ''}, {basis}"
        hours = _added([step.gpu_hours if step.gpus else None for step in steps], 3)
        price = _added([step.price for step in steps], 2)
        rows.append((first.stage, _subjects(first.stage, [step.subject for step in steps]), taken, hours, price))
    used = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    table = [[row[column] for column in used] for row in rows]
    return [f"stages ({len(plan.stages)} steps)", *indented_columns(table, len(rows[0])), *_sum(plan.total)]


def _subjects(stage: str, names: Sequence[str]) -> str:
    """Subjects in one cell; canary steps of all targets together, which have the same ones."""
    if stage != "canary":
        return ", ".join(names)
    targets, percents = (dict.fromkeys(name.split(":")[part] for name in names) for part in (0, 1))
    return f"{', '.join(targets)} at {'/'.join(percents)} %"


def _added(figures: Sequence[float | None], digits: int) -> str:
    known = [figure for figure in figures if figure is not None]
    return f"{sum(known):.{digits}f}" if known else ""


def _sum(total: TotalCost) -> list[str]:
    due = f"  at most, with every recipe tried and nothing reused: {duration(total.seconds)} one after another"
    if total.not_known:
        due += f", and {len(total.not_known)} steps of unknown time"
    if not total.gpu_hours:
        return [due]
    price = f"{total.price:.2f} {total.currency}" if total.price is not None else "no gpu_hour_prices in the deployment"
    return [due, f"  GPUs: {total.gpu_hours:.2f} hours, {price}"]


def format_plan(plan: Plan) -> str:
    """The plan as lines of text, ending with a newline."""
    sections = [
        _headline(plan),
        stage_lines(plan),
        *(_target(target, plan.ladders[target.name]) for target in plan.targets),
        _disk(plan),
    ]
    if plan.warnings:
        sections.append(["warnings", *(f"  - {warning}" for warning in plan.warnings)])
    return "\n".join("\n".join(map(one_line, section)) + "\n" for section in sections if section)


def _headline(plan: Plan) -> list[str]:
    """The release and its model, and where the model's facts come from."""
    size, judged = "size not known", []
    if facts := plan.facts:
        size = f"{_count(facts.parameters)} parameters, {byte_size(facts.stored_bytes)}"
        if facts.is_mixture:
            size += f", {_count(facts.active_parameters)} active"
        if facts.stored_format:
            size += f", quantized already ({facts.stored_format})"
        kept = f"{2 * facts.kv_elements_per_token:,} bytes of KV cache a token at 16 bit"
        if facts.state_bytes:
            kept += f" and {byte_size(facts.state_bytes)} of state a sequence"
        shape = f"{facts.model_type}, {facts.layers} layers, {facts.context_length:,} tokens of context"
        judged = [f"  judged as   {shape}, {kept}", f"  judged by   {facts.origin}"]
    return [
        f"plan of {plan.release}",
        f"  model       {plan.model}@{plan.revision}, {plan.dtype}, {size}",
        *judged,
        f"  deployment  {plan.deployment}",
        *([f"  otherwise   {plan.overrides}"] if plan.overrides else []),
    ]


def _target(target: TargetPlan, ladder: Sequence[str]) -> list[str]:
    device = target.accelerator
    if target.accelerators:
        device = f"{target.accelerators} x {target.accelerator}"
    runtime = " ".join(part for part in (target.engine, target.runtime_version) if part)
    lines = [f"target {target.name}: {device}, {runtime}"]
    if target.container:
        lines.append(f"  {target.container}@{target.digest}" if target.digest else f"  {target.container}, not pinned")
    rows = [("recipe", "format", "legal", "weights", "KV wanted", "KV free", "fits", "max batch")]
    for recipe in target.recipes:
        memory, fit = ("-",) * 5, recipe.memory
        if fit is not None:
            sizes = [byte_size(size) for size in (fit.weights, fit.kv_wanted, fit.kv_available)]
            memory = (sizes[0], sizes[1], sizes[2], "yes" if fit.fits else "NO", str(fit.largest_batch))
        stored = recipe.stored_format or recipe.weights
        rows.append((recipe.recipe, stored, "yes" if recipe.legal else "NO", *memory))
    lines += indented_columns(rows, 3)
    lines += [f"  {r.recipe}: {r.reason} -> {r.nearest}" for r in target.recipes if not r.legal]
    return [*lines, f"  ladder: {', '.join(ladder)}"] if len(ladder) > 1 else lines


def _disk(plan: Plan) -> list[str]:
    if plan.disk is None:
        return []
    need, shared = plan.disk, ", same file system" if plan.disk.one_file_system else ""
    free = "in S3" if need.free_store is None else f"of {byte_size(need.free_store)} free"
    parts = f"download {byte_size(need.download)}, recipes {byte_size(need.recipes)}"
    return [
        "disk (at most, when nothing of it exists yet)",
        f"  store  {byte_size(need.store)} {free} ({parts}, engines {byte_size(need.engines)})",
        f"  work   {byte_size(need.work)} of {byte_size(need.free_work)} free{shared}",
    ]


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.2f} M"  # noqa: PLR2004 - from 0.1 bn on
