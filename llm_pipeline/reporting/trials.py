"""Recipes and candidates of a release as they were tried: size, accuracy, speed, cost, or why one was not tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_pipeline.accuracy.evaluation import EvaluationSummary
from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.release.candidate import Candidate, candidates
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.headline import Results, chosen_recipes, failure_in_words
from llm_pipeline.reporting.model import AccuracyStudy, CandidateRow, FailedStage, Trial


def read_trials(
    record: ReleaseRecord,
    results: Results,
    accuracy: Sequence[AccuracyStudy],
    failures: Sequence[FailedStage],
    *,
    summary: Callable[[str, str], EvaluationSummary | None],
    passed_over: Callable[[str], str | None],
) -> tuple[Trial, ...]:
    """One for each recipe, the cheapest first.

    Args:
        record: The release's record.
        results: The release's results.
        accuracy: What is known of the recipes' accuracy.
        failures: Stages that ended with an error.
        summary: The summary of the evaluation of a stage and a subject.
        passed_over: Why a recipe need not be tried; None when it must be.
    """
    studies = {study.name: study for study in accuracy}
    chosen = chosen_recipes(results)
    trials = []
    for recipe in map(record.release.recipe, climbing_order(record.release, record.facts)):
        name = recipe.name
        study, gate, quantized = studies.get(name), results.get(("accuracy", name)), results.get(("quantize", name))
        asked = summary("accuracy", name) or EvaluationSummary(tasks={})
        made = quantized.metrics if quantized else {}
        bits, weight_bytes, ratio = (made.get(metric) for metric in ("effective_bits", "bytes", "size_ratio"))
        chosen_on = tuple(target for target, taken in chosen.items() if taken == name)
        failed = next((f for f in failures if f.subject == name and f.stage in ("quantize", "accuracy")), None)
        if failed:  # of the last time that it was tried
            outcome = failure_in_words(failed)
        elif gate or quantized:
            outcome = "" if gate else "quantized, not judged yet"
        else:
            why = passed_over(name)
            outcome = f"skipped: {why}" if why else "not run"
        trials.append(
            Trial(
                name=name,
                weights=recipe.weights,
                verdict=gate.judgement.verdict if gate and gate.judgement else None,
                outcome=outcome,
                chosen_on=chosen_on,
                bytes=int(weight_bytes) if isinstance(weight_bytes, int | float) else None,
                size_ratio=float(ratio) if isinstance(ratio, int | float) else None,
                effective_bits=float(bits) if isinstance(bits, int | float) else None,
                pooled=study.comparison.pooled if study else None,
                asked=asked.asked,
                planned=asked.planned,
                look=asked.look,
                looks=asked.looks,
            )
        )
    return tuple(trials)


def read_candidates(flow: ReleaseProgress, results: Results) -> tuple[CandidateRow, ...]:
    """One for each that was tried, as they were tried; none where the choice is by size."""
    if flow.release.ladder.objective == "size":
        return ()
    ladder = climbing_order(flow.release, flow.record.facts)
    tried = [Candidate.of(subject) for group in candidates(flow.release, ladder) for subject in group]
    rows = []
    for candidate in tried:
        if (trial := flow.trial(candidate)) is None:
            continue
        choice, load = results.get(("choose", candidate.target)), results.get(("load_test", candidate.subject))
        chosen, measured = choice.metrics if choice else {}, load.metrics if load else {}
        row = {
            "target": candidate.target,
            "name": candidate.in_words,
            "chosen": (chosen.get("recipe"), chosen.get("variant") or "") == candidate[1:],
            "verdict": trial.verdict,
            "outcome": trial.summary,
            "cost": trial.cost,
            "tokens_per_second": measured.get("output_tokens_per_second"),
            "gpu_memory_bytes": measured.get("gpu_memory_bytes"),
            "acceptance_length": measured.get("acceptance_length"),
        }
        rows.append(CandidateRow.model_validate(row))
    return tuple(rows)
