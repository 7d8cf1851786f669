"""The short summary of a release, in Markdown: for the approval page, a chat message or a pull request."""

from __future__ import annotations

from llm_pipeline.base.quantities import byte_size, duration
from llm_pipeline.base.untrusted_text import markdown, one_line
from llm_pipeline.base.verdict import Evidence
from llm_pipeline.reporting.failures import failure_in_words
from llm_pipeline.reporting.model import EngineSpeed, Gate, ReportData, Trial, Variant, verdict_in_words
from llm_pipeline.reporting.quantities import measure, points


def render_markdown(data: ReportData) -> str:
    """A heading, one sentence, what is released, and the gates as a table; text from outside is escaped."""
    heading = f"{data.model_id}, {data.recipe}: {data.headline.state} ({verdict_in_words(data)})"
    lines = [
        f"## {markdown(heading)}",
        "",
        markdown(data.headline.sentence),
        "",
        f"- **Release config**: {markdown(data.title)}",
    ]
    lines += [
        f"- **{markdown(fact.label)}**: {_code(fact.value) if fact.code else markdown(fact.value)}"
        for fact in data.facts
    ]
    if data.failures:
        lines += ["", *(f"- {markdown(failure_in_words(failed))}" for failed in data.failures)]
    if data.gates:
        lines += ["", "| Gate | Verdict | Decisive evidence | Limit | Samples |", "|---|---|---|---|---|"]
        lines += [_row(gate) for gate in data.gates]
    if data.trials:
        lines += ["", "| Recipe | Verdict | Size | Accuracy | Points lost | Lost / gained | KL | Items |"]
        lines += ["|---|---|---|---|---|---|---|---|", *map(_trial, data.trials)]
    if data.variants:
        speeds = [_speed(variant, engine) for variant in data.variants for engine in variant.engines]
        lines += ["", f"Speeds, measured by the builds: {markdown('; '.join(speeds))}."] if speeds else []
    if data.stages:
        busy = sum(run.timings.total_seconds for run in data.stages)
        reused = sum(run.reused for run in data.stages)
        lines += ["", f"{len(data.stages)} stages, {reused} reused, {markdown(duration(busy))} of work."]
        total = data.spending.total
        if total.gpu_hours:
            price = "" if total.price is None else f", {total.price:.2f} {data.spending.currency}"
            lines[-1] += f" Measured: {total.gpu_hours:.2f} GPU-hours{markdown(price)}."
    return "\n".join(lines) + "\n"


def _trial(trial: Trial) -> str:
    """One recipe's row; the text of one that was not judged stands where its verdict would."""
    name = f"**{markdown(trial.name)}** ✓" if trial.chosen_on else markdown(trial.name)
    share = f" ({100 * trial.size_ratio:.1f} %)" if trial.size_ratio else ""
    size = f"{byte_size(trial.bytes)}{share}" if trial.bytes else ""
    verdict = " ".join(part for part in (trial.verdict.value if trial.verdict else "", trial.outcome) if part)
    pooled, far = trial.pooled, trial.divergence
    accuracy = loss = flips = ""
    if pooled and pooled.loss and pooled.baseline and pooled.candidate:
        accuracy = f"{100 * pooled.candidate.estimate:.2f} % of {100 * pooled.baseline.estimate:.2f} %"
        loss = f"{points(pooled.loss.estimate)} ({points(pooled.loss.lower)} to {points(pooled.loss.upper)})"
        flips = f"{pooled.lost:,} / {pooled.gained:,}"
    divergence = f"{far.kl_at_least:.2g}" if far and far.kl_at_least is not None else ""
    asked = f"{trial.asked:,} of {trial.planned:,}" if trial.asked else ""
    return f"| {name} | {' | '.join(map(markdown, (verdict, size, accuracy, loss, flips, divergence, asked)))} |"


def _speed(variant: Variant, engine: EngineSpeed) -> str:
    rates = [
        f"{rate:,.0f} tokens/s {how}"
        for rate, how in (
            (engine.single_stream, "for one request"),
            (engine.batched, f"for {engine.sequences} together" if engine.sequences else "batched"),
        )
        if rate
    ]
    origin = f" ({variant.origin})" if variant.origin else ""
    return f"{variant.name}{origin} on {engine.target} {', '.join(rates) or 'not measured'}"


def _row(gate: Gate) -> str:
    name = markdown(gate.name) + ("" if gate.decides else " (not released)")
    first = gate.decisive
    if first is None:
        return f"| {name} | {markdown(gate.judgement.verdict.value)} | {markdown(gate.judgement.summary)} | | |"
    limit = markdown(measure(first.limit, first.unit))
    return f"| {name} | {markdown(gate.judgement.verdict.value)} | {_fact(first)} | {limit} | {first.samples} |"


def _fact(fact: Evidence) -> str:
    bound = f", upper bound {measure(fact.upper, fact.unit)}" if fact.upper is not None else ""
    return markdown(f"{fact.name}: {measure(fact.measured, fact.unit)}{bound}")


def _code(value: str) -> str:
    return "`" + one_line(value).replace("`", "'") + "`"
