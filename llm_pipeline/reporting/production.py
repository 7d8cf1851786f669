"""How a release stands to production: whether it serves, what served before, and what a rolled back canary caught."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from llm_pipeline.base.quantities import duration
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.timeline import TimelineMark
from llm_pipeline.release.contract import StageResult
from llm_pipeline.reporting.model import CanaryRollback, CanaryStudy
from llm_pipeline.store.pointers import Pointer, Pointers

UNQUANTIZED = "none"
"""Name and weight format of the recipe that passes the checkpoint through."""

Results = Mapping[tuple[str, str], StageResult]


def chosen_recipes(results: Results) -> dict[str, str]:
    """The recipe that is released on each target; without those that have not chosen yet, or found none that passed."""
    choices = {target: choice.metrics.get("recipe") for (stage, target), choice in results.items() if stage == "choose"}
    return {target: str(recipe) for target, recipe in choices.items() if recipe}


def serves(pointer: Pointer | None, release_id: str, results: Results, target: str) -> bool:
    """Whether a pointer is at this release, or at one that packaged the very same model repository."""
    if pointer is None:
        return False
    packaged = results.get(("package", target))
    same = packaged is not None and pointer.repository in packaged.artifacts.values()
    return pointer.release_id == release_id or (same and ("settle", target) in results)


def served_before(pointers: Pointers, release_id: str, results: Results, target: str) -> Pointer | None:
    """What was in production before the release, or during its canary; None when the pointers no longer know."""
    if serves(pointers.production, release_id, results, target):
        return pointers.previous
    ended = last_start(results)
    for pointer in (pointers.production, pointers.previous):
        if pointer and ended and pointer.promoted_at <= ended and pointer.release_id != release_id:
            return pointer
    return None


def last_start(results: Results) -> datetime | None:
    """When the release's latest stage began; reports, which can be made at any later time, do not count."""
    return max((r.timings.started_at for r in results.values() if r.stage != "report"), default=None)


_BACK = "rolling back"
_ON_STABLE = "traffic on stable"
_SOON_SECONDS = 0.1


def find_rollback(marks: Sequence[TimelineMark]) -> CanaryRollback | None:
    """The rollback among a canary's moments (with their full labels), if there is one: the last."""
    decided = next((mark for mark in reversed(marks) if mark.label.partition(":")[0] == _BACK), None)
    on_stable = next((mark for mark in reversed(marks) if mark.label == _ON_STABLE), None)
    began = decided or on_stable
    if began is None:
        return None
    shifts = [mark for mark in marks if mark.label.endswith(" %") and mark.at_seconds <= began.at_seconds]
    settled = on_stable is not None and decided is not None and on_stable.at_seconds >= decided.at_seconds
    return CanaryRollback(
        step=shifts[-1].label if shifts else "",
        reason=decided.label.partition(":")[2].strip() if decided else "",
        seconds_after_shift=began.at_seconds - shifts[-1].at_seconds if shifts else None,
        seconds_until_stable=on_stable.at_seconds - decided.at_seconds if settled and on_stable and decided else None,
    )


def ended_in_rollback(results: Results) -> bool:
    """The rollback stage runs after every release; only its phase says whether it moved traffic back."""
    last = _last(results, None)
    return last is not None and last.metrics.get("phase") == Phase.ROLLED_BACK.value


def rollback_in_words(results: Results, pointers: Mapping[str, Pointers], canaries: Sequence[CanaryStudy]) -> str:
    """For each target: what was caught and when, that production is as it was, and what was lost."""
    studies = {study.target: study for study in canaries}
    texts = []
    for target, place in pointers.items():
        last = _last(results, target)
        if last is None or last.metrics.get("phase") != Phase.ROLLED_BACK.value:
            continue
        study = studies.get(target)
        parts = (
            _caught(target, study.rollback if study else None, _judgement(results, target)),
            _back(results, target, study.rollback if study else None),
            _production(results, target, place),
            _lost(study),
        )
        texts.append(" ".join(part for part in parts if part))
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


def _caught(target: str, rollback: CanaryRollback | None, judgement: Judgement | None) -> str:
    reason = judgement.summary.rstrip(".") if judgement else rollback.reason if rollback else ""
    step = f" at the {rollback.step} step" if rollback and rollback.step else ""
    after = rollback.seconds_after_shift if rollback else None
    when = f", {duration(after)} after the shift" if after is not None else ""
    if not reason:
        return f"Taken back on {target}{step}{when}; no gate asked for it."
    caught = judgement is None or judgement.verdict in (Verdict.NO_GO, Verdict.ANOMALOUS)
    return f"{'Caught' if caught else 'Taken back'} on {target}{step}{when}: {_lowered(reason)}{_proof(judgement)}."


def _lowered(reason: str) -> str:
    """The reason within a sentence; abbreviations keep their capitals."""
    return reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]


def _proof(judgement: Judgement | None) -> str:
    """What was seen, from the evidence that did not pass: `candidate 3/3, stable 0/75 beyond 26 ms`."""
    worst = [fact for fact in judgement.evidence if fact.verdict is judgement.verdict] if judgement else []
    seen = worst[0].detail.partition(";")[0].partition(": ")[2] if worst else ""
    return f"; {seen}" if seen else ""


def _back(results: Results, target: str, rollback: CanaryRollback | None) -> str:
    until = rollback.seconds_until_stable if rollback else None
    confirmed = results.get(("rollback", target))
    if confirmed is not None and confirmed.metrics.get("traffic_confirmed") == 0:
        return "The router has not confirmed that traffic is back on stable."
    if until is None:
        return ""
    soon = "less than 0.1 s" if until < _SOON_SECONDS else duration(until)
    return f"All traffic was back on stable {soon} later."


def _production(results: Results, target: str, place: Pointers) -> str:
    """Unchanged is said only of a production pointer that is older than the rolled back canary."""
    production = place.production
    if production is None:
        return "Nothing was in production before, and nothing is now."
    what = f"{production.recipe} of release {production.release_id}"
    last = _last(results, target)
    if last is not None and production.promoted_at > last.timings.started_at:
        return f"Production has moved on since: {what} serves."
    return f"Production is unchanged: {what} serves."


def _lost(study: CanaryStudy | None) -> str:
    if study is None or not study.samples:
        return "How many requests were lost is not known: the canary left no measurements."
    candidate = sum(sample.candidate.requests for sample in study.samples)
    total = candidate + sum(sample.stable.requests for sample in study.samples)
    lost = sum(sample.candidate.lost + sample.stable.lost for sample in study.samples)
    words = {0: "No request was lost", 1: "1 request was lost"}.get(lost, f"{lost:,} requests were lost")
    return f"{words} of the {total:,} seen during the canary ({candidate:,} of them sent to the candidate)."
