"""How a release stands to production: whether it serves, what served before, and what a rolled back canary caught."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_pipeline.base.quantities import duration
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.canary.record import CanaryEvent, EventKind, Phase
from llm_pipeline.release.candidate import Candidate
from llm_pipeline.release.choice import recipes_in_words
from llm_pipeline.release.contract import StageResult
from llm_pipeline.reporting.model import CanaryRollback, CanaryStudy
from llm_pipeline.store.place_state import PlaceState, Pointer

UNQUANTIZED = "none"
"""Name and weight format of the recipe that passes the checkpoint through."""

Results = Mapping[tuple[str, str], StageResult]


def chosen_recipes(results: Results) -> dict[str, str]:
    """The recipe that is released on each target; without those that have not chosen yet, or found none that passed."""
    choices = {target: choice.metrics.get("recipe") for (stage, target), choice in results.items() if stage == "choose"}
    return {target: str(recipe) for target, recipe in choices.items() if recipe}


def chosen_in_words(results: Results) -> str:
    """The recipes that targets chose, with their variants; empty for none."""
    taken = {}
    for target, recipe in chosen_recipes(results).items():
        variant = results["choose", target].metrics.get("variant") or ""
        taken[target] = Candidate(target, recipe, str(variant)).in_words
    return recipes_in_words(taken)


def serves(pointer: Pointer | None, release_id: str, results: Results, target: str) -> bool:
    """Whether a pointer is at this release, or at one that packaged the very same model repository."""
    if pointer is None:
        return False
    packaged = results.get(("package", target))
    same = packaged is not None and pointer.repository in packaged.artifacts.values()
    return pointer.release_id == release_id or (same and ("settle", target) in results)


def find_rollback(events: Sequence[CanaryEvent]) -> CanaryRollback | None:
    """The rollback among a canary's events, if there is one: the last."""

    def last(kind: EventKind) -> CanaryEvent | None:
        return next((event for event in reversed(events) if event.kind is kind), None)

    decided, on_stable = last(EventKind.ROLLING_BACK), last(EventKind.ROLLED_BACK)
    began = decided or on_stable
    if began is None:
        return None
    shifts = [event for event in events if event.kind is EventKind.SHIFTED and event.at <= began.at]
    settled = on_stable is not None and decided is not None and on_stable.at >= decided.at
    return CanaryRollback(
        step=f"{shifts[-1].percent:g} %" if shifts else "",
        reason=decided.summary if decided else "",
        seconds_after_shift=began.at - shifts[-1].at if shifts else None,
        seconds_until_stable=on_stable.at - decided.at if settled and on_stable and decided else None,
    )


def ended_in_rollback(results: Results) -> bool:
    """The rollback stage runs after every release; only its phase says whether it moved traffic back."""
    last = _last(results, None)
    return last is not None and last.metrics.get("phase") == Phase.ROLLED_BACK.value


def rollback_in_words(results: Results, pointers: Mapping[str, PlaceState], canaries: Sequence[CanaryStudy]) -> str:
    """For each target: what was caught and when, what serves, and what was lost."""
    studies = {study.target: study for study in canaries}
    texts = []
    for target, place in pointers.items():
        last = _last(results, target)
        if last is None or last.metrics.get("phase") != Phase.ROLLED_BACK.value:
            continue
        study, judged = studies.get(target), _judgement(results, target)
        rollback = study.rollback if study else None
        step, after, until = "", "", None
        if rollback is not None:
            step, until = f" at the {rollback.step} step" if rollback.step else "", rollback.seconds_until_stable
            if rollback.seconds_after_shift is not None:
                after = f", {duration(rollback.seconds_after_shift)} after the shift"
        reason = judged.summary if judged else (rollback.reason if rollback else "") or "no gate asked for it"
        texts.append(f"Taken back on {target}{step}{after}: {reason.rstrip('.')}.")
        if last.metrics.get("traffic_confirmed") == 0:
            texts.append("The router has not confirmed that traffic is back on stable.")
        elif until is not None:
            texts.append(f"All traffic was back on stable {duration(until)} later.")
        if place.production is not None:
            texts.append(f"Recipe {place.production.recipe} of release {place.production.release_id} serves.")
        if study is not None and study.samples:
            seen = sum(sample.candidate.requests + sample.stable.requests for sample in study.samples)
            lost = sum(sample.candidate.lost + sample.stable.lost for sample in study.samples)
            texts.append(f"Requests lost during the canary: {lost:,} of {seen:,}.")
    return " ".join(texts)


def _last(results: Results, target: str | None) -> StageResult | None:
    found = [
        result
        for result in results.values()
        if result.stage in ("canary", "rollback") and target in (None, result.subject.partition(":")[0])
    ]
    return max(found, key=lambda result: (result.timings.started_at, result.stage), default=None)


def _judgement(results: Results, target: str) -> Judgement | None:
    """The judgement of the canary's last step, if that is what stopped it."""
    steps = [r for r in results.values() if r.stage == "canary" and r.subject.partition(":")[0] == target]
    last = max(steps, key=lambda result: result.timings.started_at, default=None)
    judged = last.judgement if last else None
    return judged if judged and judged.verdict is not Verdict.GO else None
