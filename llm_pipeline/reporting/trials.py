"""Every recipe of a release as it was tried: size of the checkpoint, accuracy, speed, or why it was not tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_pipeline.accuracy.evaluation import EvaluationSummary
from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.reporting.failures import failure_in_words
from llm_pipeline.reporting.model import AccuracyStudy, EngineSpeed, FailedStage, Trial
from llm_pipeline.reporting.production import Results, chosen_recipes


def read_trials(
    record: ReleaseRecord,
    results: Results,
    accuracy: Sequence[AccuracyStudy],
    failures: Sequence[FailedStage],
    *,
    size: Callable[[ArtifactRef], int | None],
    summary: Callable[[str, str], EvaluationSummary | None],
    passed_over: Callable[[str], str | None],
) -> tuple[Trial, ...]:
    """One for each recipe, the cheapest first.

    Args:
        record: The release's record.
        results: The release's results.
        accuracy: What is known of the recipes' accuracy.
        failures: Stages that ended with an error.
        size: Bytes of an artifact; None where it cannot be read.
        summary: The summary of the evaluation of a stage and a subject.
        passed_over: Why a recipe need not be tried; None when it must be.
    """
    published = checkpoint_bytes(results, "download", "", size)
    studies = {study.name: study for study in accuracy}
    chosen = chosen_recipes(results)
    trials = []
    for recipe in map(record.release.recipe, climbing_order(record.release, record.facts)):
        name = recipe.name
        study, gate, quantized = studies.get(name), results.get(("accuracy", name)), results.get(("quantize", name))
        asked = summary("accuracy", name) or EvaluationSummary(tasks={})
        bits = quantized.metrics.get("effective_bits") if quantized else None
        own_bytes = checkpoint_bytes(results, "quantize", name, size)
        chosen_on = tuple(target for target, taken in chosen.items() if taken == name)
        failed = next((f for f in failures if f.subject == name and f.stage in ("quantize", "accuracy")), None)
        if failed:  # of the last time that it was tried
            outcome = failure_in_words(failed)
        elif gate or quantized:
            outcome = "" if gate else "quantized, not judged yet"
        else:
            why = passed_over(name)
            outcome = f"skipped: {why}" if why else "not run"
        engines = tuple(_speed(build) for target in chosen_on if (build := results.get(("build", target))))
        trials.append(
            Trial(
                name=name,
                weights=recipe.weights,
                verdict=gate.judgement.verdict if gate and gate.judgement else None,
                outcome=outcome,
                chosen_on=chosen_on,
                bytes=own_bytes,
                size_ratio=own_bytes / published if own_bytes and published else None,
                effective_bits=float(bits) if isinstance(bits, int | float) else None,
                pooled=study.comparison.pooled if study else None,
                asked=asked.asked,
                planned=asked.planned,
                look=asked.look,
                looks=asked.looks,
                engines=engines,
            )
        )
    return tuple(trials)


def checkpoint_bytes(
    results: Results, stage: str, subject: str, size: Callable[[ArtifactRef], int | None]
) -> int | None:
    """Bytes of the checkpoint that a stage made; None where it made none, or it cannot be read."""
    result = results.get((stage, subject))
    ref = result.artifacts.get("checkpoint") if result else None
    return size(ref) if ref else None


def _speed(build: StageResult) -> EngineSpeed:
    sequences = build.metrics.get("batched_sequences")
    return EngineSpeed(
        target=build.subject,
        single_stream=_rate(build.metrics.get("single_stream_tokens_per_second")),
        batched=_rate(build.metrics.get("batched_tokens_per_second")),
        sequences=sequences if isinstance(sequences, int) else None,
        device=str(build.metrics.get("device") or ""),
    )


def _rate(metric: Metric | None) -> float | None:
    """A rate; zero is how a builder says that it measured none."""
    return float(metric) if isinstance(metric, int | float) and metric > 0 else None
