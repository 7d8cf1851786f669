"""The plan for people: an aligned table."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.canary_table import canary_lines
from llm_pipeline.planning.capacity import Capacity
from llm_pipeline.planning.cost_table import aligned, data_lines, gate_lines, gpu_lines, load_lines
from llm_pipeline.planning.expected_scores import expected_lines
from llm_pipeline.planning.memory import MemoryFit
from llm_pipeline.planning.model import Plan, TargetPlan, format_bytes
from llm_pipeline.planning.stage_table import stage_lines
from llm_pipeline.planning.throughput_table import throughput_lines

_HEADER = ("recipe", "format", "legal", "weights", "KV wanted", "KV free", "fits")
_NUMBERS_FROM = 3


def format_plan(plan: Plan) -> str:
    """The plan as lines of text, ending with a newline."""
    sections = [
        _headline(plan),
        stage_lines(plan),
        *(_target(target, plan.ladders[target.name]) for target in plan.targets),
        expected_lines(plan.expected),
        gate_lines(plan.tasks, plan.gates),
        data_lines(plan.data),
        load_lines(plan.load_test),
        canary_lines(plan.canary),
        gpu_lines(plan.gpus) if plan.gpus else [],
        _disk(plan),
    ]
    if plan.warnings:
        sections.append(["warnings", *(f"  - {warning}" for warning in plan.warnings)])
    return "\n".join("\n".join(map(one_line, section)) + "\n" for section in sections if section)


def _headline(plan: Plan) -> list[str]:
    size = "size not known"
    if facts := plan.facts:
        size = f"{_count(facts.parameters)} parameters, {format_bytes(facts.stored_bytes)}"
        if facts.is_mixture:
            size += f", {_count(facts.active_parameters)} active"
        if facts.stored_format:
            size += f", quantized already ({facts.stored_format})"
    return [
        f"plan of {plan.release}",
        f"  model       {plan.model}@{plan.revision}, {plan.dtype}, {size}",
        *_told_of(plan.facts),
        f"  deployment  {plan.deployment}",
    ]


def _told_of(facts: ModelFacts | None) -> list[str]:
    """What the model is, and what says so."""
    if facts is None:
        return []
    kept = f"{2 * facts.kv_elements_per_token:,} bytes of KV cache a token at 16 bit"
    if facts.state_bytes:
        kept += f" and {format_bytes(facts.state_bytes)} of state a sequence"
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
            recipe.weights,
            "yes" if recipe.legal else "NO",
            *_memory(recipe.memory),
            *_capacity(recipe.capacity),
        )
        for recipe in target.recipes
    ]
    lines += aligned([_header(target), *rows], _NUMBERS_FROM)
    lines += [f"  {r.recipe}: {r.reason} -> {r.nearest}" for r in target.recipes if not r.legal]
    lines += [f"  {r.recipe}: {r.split.why} -> {r.split.change}" for r in target.recipes if r.legal and r.split]
    lines += throughput_lines(target)
    return [*lines, f"  ladder: {', '.join(ladder)}"] if len(ladder) > 1 else lines


def _header(target: TargetPlan) -> tuple[str, ...]:
    held = next((recipe.capacity for recipe in target.recipes if recipe.capacity), None)
    if held is None:
        return (*_HEADER, "batch", "length")
    lengths = "/".join(_tokens(batch.tokens) for batch in held.batches)
    return (*_HEADER, f"batch at {lengths}", f"length at {held.sequences}")


def _memory(fit: MemoryFit | None) -> tuple[str, ...]:
    if fit is None:
        return ("-",) * (len(_HEADER) - _NUMBERS_FROM)
    fits = "yes" if fit.fits else "NO"
    return (format_bytes(fit.weights), format_bytes(fit.kv_wanted), format_bytes(fit.kv_available), fits)


def _capacity(held: Capacity | None) -> tuple[str, ...]:
    if held is None:
        return "-", "-"
    return "/".join(str(batch.batch) for batch in held.batches), str(held.longest_request)


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count % 1024 == 0 else str(count)


def _disk(plan: Plan) -> list[str]:
    if plan.disk is None:
        return []
    need, shared = plan.disk.need, ", same file system" if plan.disk.one_file_system else ""
    free = "in S3" if plan.disk.free_store is None else f"of {format_bytes(plan.disk.free_store)} free"
    parts = f"download {format_bytes(need.download)}, recipes {format_bytes(need.recipes)}"
    data = plan.disk.data
    return [
        "disk (at most, when nothing of it exists yet)",
        f"  store  {format_bytes(need.store)} {free} ({parts}, engines {format_bytes(need.engines)})",
        f"  work   {format_bytes(need.work)} of {format_bytes(plan.disk.free_work)} free{shared}",
        *([f"  data   {format_bytes(data)} of the evaluation, once in the store and twice in work"] if data else ()),
    ]


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.2f} M"  # noqa: PLR2004 - from 0.1 bn on
