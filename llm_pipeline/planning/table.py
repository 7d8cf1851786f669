"""The plan for people: an aligned table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from llm_pipeline.planning.cost_table import aligned, gate_lines, gpu_lines
from llm_pipeline.planning.memory import MemoryFit
from llm_pipeline.planning.model import Plan, TargetPlan, format_bytes
from llm_pipeline.planning.stage_graph import PlannedStage
from llm_pipeline.planning.target_speed import SpeedFigures

_HEADER = ("recipe", "format", "legal", "weights", "KV wanted", "KV free", "fits", "largest batch", "speed")
_NUMBERS_FROM = 3


def format_plan(plan: Plan) -> str:
    """The plan as lines of text, ending with a newline."""
    sections = [
        _headline(plan),
        _stages(plan.stages),
        *(_target(target, plan.ladders[target.name]) for target in plan.targets),
        gate_lines(plan.tasks, plan.gates),
        gpu_lines(plan.gpus) if plan.gpus else [],
        _disk(plan),
    ]
    if plan.warnings:
        sections.append(["warnings", *(f"  - {warning}" for warning in plan.warnings)])
    return "\n".join("\n".join(section) + "\n" for section in sections if section)


def _headline(plan: Plan) -> list[str]:
    size = "size not known"
    if plan.parameters and plan.checkpoint_bytes:
        size = f"{_count(plan.parameters)} parameters, {format_bytes(plan.checkpoint_bytes)}"
    return [
        f"plan of {plan.release}",
        f"  model       {plan.model}@{plan.revision}, {plan.dtype}, {size}",
        f"  deployment  {plan.deployment}",
    ]


def _stages(stages: Sequence[PlannedStage]) -> list[str]:
    subjects: dict[str, list[str]] = {}
    for step in stages:
        subjects.setdefault(step.stage, []).append(step.subject)
    rows = [
        (", ".join(stage for stage, _ in group), _subjects(names))
        for names, group in groupby(subjects.items(), key=lambda item: item[1])
    ]
    width = max(len(names) for names, on in rows if on)
    return [f"stages ({len(stages)} steps)", *(f"  {names:<{width}}  {on}".rstrip() for names, on in rows)]


def _subjects(names: Sequence[str]) -> str:
    """Subjects in one line; canary steps of the same target together."""
    if not any(":" in name for name in names):
        return ", ".join(names)
    pairs = [name.split(":", 1) for name in names]
    targets = groupby(pairs, key=lambda pair: pair[0])
    return ", ".join(f"{target} {'/'.join(percent for _, percent in steps)} %" for target, steps in targets)


def _target(target: TargetPlan, ladder: Sequence[str]) -> list[str]:
    device = target.accelerator
    if target.accelerators:
        device = f"{target.accelerators} x {target.accelerator} ({target.architecture})"
    runtime = " ".join(part for part in (target.engine, target.runtime_version) if part)
    lines = [f"target {target.name}: {device}, {runtime}"]
    if target.container:
        lines.append(f"  {target.container}" + (f", driver {target.driver}" if target.driver else ""))
    rows = [
        (recipe.recipe, recipe.weights, "yes" if recipe.legal else "NO", *_memory(recipe.memory), _speed(recipe.speed))
        for recipe in target.recipes
    ]
    lines += aligned([_HEADER, *rows], _NUMBERS_FROM)
    lines += [f"  {r.recipe}: {r.reason} -> {r.nearest}" for r in target.recipes if not r.legal]
    return [*lines, f"  ladder: {', '.join(ladder)}"] if len(ladder) > 1 else lines


def _speed(figures: SpeedFigures | None) -> str:
    """Alone and together: `1.36x, 0.85x at 48`."""
    if figures is None:
        return "-"
    return f"{figures.alone:.2f}x, {figures.together:.2f}x at {figures.requests}"


def _memory(fit: MemoryFit | None) -> tuple[str, ...]:
    if fit is None:
        return ("-",) * (len(_HEADER) - _NUMBERS_FROM - 1)
    fits = "yes" if fit.fits else "NO"
    return (
        format_bytes(fit.weights),
        format_bytes(fit.kv_wanted),
        format_bytes(fit.kv_available),
        fits,
        str(fit.largest_batch),
    )


def _disk(plan: Plan) -> list[str]:
    if plan.disk is None:
        return []
    need, shared = plan.disk.need, ", same file system" if plan.disk.one_file_system else ""
    free = "in S3" if plan.disk.free_store is None else f"of {format_bytes(plan.disk.free_store)} free"
    parts = f"download {format_bytes(need.download)}, recipes {format_bytes(need.recipes)}"
    return [
        "disk (at most, when nothing of it exists yet)",
        f"  store  {format_bytes(need.store)} {free} ({parts}, engines {format_bytes(need.engines)})",
        f"  work   {format_bytes(need.work)} of {format_bytes(plan.disk.free_work)} free{shared}",
    ]


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.2f} M"  # noqa: PLR2004 - from 0.1 bn on
