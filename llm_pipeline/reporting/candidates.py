"""Every candidate of a release by cost as its trial found it, beside what the plan says of it."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.planning.memory import MemoryFit, climbing_order
from llm_pipeline.planning.speed import REACHED, Tokens, engine_of, most_tokens_per_second
from llm_pipeline.planning.target_plan import TargetPlan
from llm_pipeline.release.candidate import Candidate, candidates
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.model import CandidateRow
from llm_pipeline.reporting.production import Results


def read_candidates(flow: ReleaseProgress, results: Results, plans: Sequence[TargetPlan]) -> tuple[CandidateRow, ...]:
    """One for each that was tried, as they were tried; none where the choice is by size."""
    if flow.release.ladder.objective == "size":
        return ()
    ladder = climbing_order(flow.release, flow.record.facts)
    tried = [Candidate.of(subject) for group in candidates(flow.release, ladder) for subject in group]
    planned = {(plan.name, recipe.recipe): recipe.memory for plan in plans for recipe in plan.recipes}
    rows = (_row(flow, results, one, planned.get((one.target, one.recipe))) for one in tried)
    return tuple(row for row in rows if row is not None)


def _row(flow: ReleaseProgress, results: Results, candidate: Candidate, fit: MemoryFit | None) -> CandidateRow | None:
    if (trial := flow.trial(candidate)) is None:
        return None
    choice, load = results.get(("choose", candidate.target)), results.get(("load_test", candidate.subject))
    chosen, measured = choice.metrics if choice else {}, load.metrics if load else {}
    target, tokens = flow.release.target(candidate.subject), _planned_tokens(flow, candidate, load)
    price = flow.deployment.gpu_hour_prices.get(target.accelerator, 0.0) * max(1, target.accelerator_count)
    memory = None
    if fit is not None and target.accelerator != "cpu":
        memory = (fit.weights + fit.runtime + fit.kv_available) * target.parallelism.world_size
    figures = {name: measured.get(name) for name in ("gpu_memory_bytes", "acceptance_length")}
    return CandidateRow.model_validate(
        {
            "target": candidate.target,
            "name": candidate.in_words,
            "chosen": (chosen.get("recipe"), chosen.get("variant") or "") == candidate[1:],
            "verdict": trial.verdict,
            "outcome": trial.summary,
            "cost": trial.cost,
            "planned_cost": 1e6 * price / 3600 / tokens if price and tokens else None,
            "tokens_per_second": measured.get("output_tokens_per_second"),
            "planned_tokens_per_second": tokens,
            "planned_memory_bytes": memory,
            **figures,
        }
    )


def _planned_tokens(flow: ReleaseProgress, candidate: Candidate, load: StageResult | None) -> float | None:
    """For requests as long as those of the load test."""
    target, facts = flow.release.target(candidate.subject), flow.record.facts
    rate = float(load.metrics.get("confirmed_rate_per_second") or 0.0) if load else 0.0
    if load is None or facts is None or not rate or target.accelerator == "cpu":
        return None
    paces = (float(load.metrics.get(f"{kind}_tokens_per_second") or 0.0) for kind in ("input", "output"))
    prompt, output = (round(pace / rate) for pace in paces)
    engine = engine_of(facts, target, flow.release.recipe(candidate.recipe))
    tokens = Tokens(prompt, max(1, output))
    return REACHED * most_tokens_per_second(engine, target.limits.maximum_sequences, tokens)
