"""A release's outcome in one sentence, and what exactly is released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from llm_pipeline.base.verdict import Verdict, worst
from llm_pipeline.release.candidate import is_trial
from llm_pipeline.release.choice import recipes_in_words
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.decision import Decision
from llm_pipeline.release.flow import clears_up
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.reporting.failures import failures_in_words
from llm_pipeline.reporting.model import CanaryStudy, Fact, FailedStage, Headline, State, stage_label
from llm_pipeline.reporting.production import (
    UNQUANTIZED,
    Results,
    chosen_in_words,
    chosen_recipes,
    ended_in_rollback,
    rollback_in_words,
    serves,
)
from llm_pipeline.store.place_state import PlaceState


def decides(result: StageResult, results: Results) -> bool:
    """Whether a gate bears on the release: a candidate's does not, nor once `choose` judged that of another recipe."""
    if is_trial(result.stage, result.subject):
        return False
    chose = any(stage == "choose" for stage, _ in results)
    return result.stage != "accuracy" or not chose or result.subject in chosen_recipes(results).values()


def recipe_in_words(record: ReleaseRecord, results: Results) -> str:
    """The recipe in a title: the chosen one, or the only one; else what became of the choice."""
    names = [recipe.name for recipe in record.release.recipes]
    chosen = chosen_in_words(results) or (names[0] if len(names) == 1 else "")
    if chosen:
        return f"recipe {chosen}{' (unquantized)' if chosen == UNQUANTIZED else ''}"
    return "no recipe passed" if any(stage == "choose" for stage, _ in results) else "no recipe chosen yet"


def release_headline(
    record: ReleaseRecord,
    results: Results,
    pointers: Mapping[str, PlaceState],
    failures: Sequence[FailedStage] = (),
    canaries: Sequence[CanaryStudy] = (),
    *,
    question: Decision | None = None,
) -> Headline:
    """State, verdict and their sentences; `question` is what was refused in this run, or still waits."""
    gates = [result for result in results.values() if result.judgement is not None and decides(result, results)]
    gates.sort(key=lambda result: result.timings.started_at)
    verdict = worst(gate.judgement.verdict for gate in gates if gate.judgement) if gates else None
    if not any(gate.stage == "choose" for gate in gates) and any(gate.stage == "accuracy" for gate in gates):
        verdict = _without_recipes(gates)
    state = _state(record.release_id, results, pointers, verdict, failures)
    ended = question is not None and question.answer == "ended"
    if question is not None and (state == "on its way" or (state == "failed" and ended)):
        told = question.in_words
        sentence = f"{told[:1].upper()}{told[1:]}. "
        sentence += f"The question: {question.question}" if question.question else _progress(results)
        if question.refused:
            state = "ended by a person" if ended else "not approved"
    elif state == "rolled back":
        sentence = rollback_in_words(results, pointers, canaries)
    else:
        sentence = _sentence(state, record, results, pointers, gates)
    return Headline(
        state=state,
        verdict=None if state == "failed" else verdict,
        sentence=_with_failures(state, sentence, failures),
    )


def _without_recipes(gates: Sequence[StageResult]) -> Verdict | None:
    """The verdict while recipes are judged: that of a gate before them which stopped the release, or none yet."""
    verdict = worst(gate.judgement.verdict for gate in gates if gate.judgement and gate.stage != "accuracy")
    others = any(gate.stage != "accuracy" for gate in gates)
    return verdict if others and verdict is not Verdict.GO else None


def _with_failures(state: State, sentence: str, failures: Sequence[FailedStage]) -> str:
    """What failed comes first when it decided what became of the release, and last when it did not."""
    deciding = [failed for failed in failures if failed.decides]
    if state == "failed":
        return failures_in_words(deciding)
    return f"{sentence.rstrip()} {failures_in_words(failures)}" if failures else sentence


def _state(
    release_id: str,
    results: Results,
    pointers: Mapping[str, PlaceState],
    verdict: Verdict | None,
    failures: Sequence[FailedStage],
) -> State:
    if any(serves(place.production, release_id, results, name) for name, place in pointers.items()):
        return "in production"
    if any(failed.stage == "rollback" for failed in failures):
        return "failed"
    if ended_in_rollback(results):
        return "rolled back"
    if verdict in (None, Verdict.GO) and any(failed.decides for failed in failures):
        return "failed"
    if any(stage == "settle" for stage, _ in results):
        return "replaced"
    return "on its way" if verdict in (None, Verdict.GO) else "stopped"


def _started(result: StageResult) -> tuple[datetime, str]:
    return result.timings.started_at, result.stage


def _sentence(
    state: State,
    record: ReleaseRecord,
    results: Results,
    pointers: Mapping[str, PlaceState],
    gates: list[StageResult],
) -> str:
    failed = [gate for gate in gates if gate.judgement and gate.judgement.verdict is not Verdict.GO]
    if state == "in production":
        return f"{_serving(record, results, pointers)} {_why(results)}".strip()
    if state == "stopped" and failed:
        return _stopped_by(failed[-1], results)
    if state == "replaced":
        return f"It was in production; another release serves now. {_why(results)}".strip()
    return _progress(results)


def _stopped_by(gate: StageResult, results: Results) -> str:
    """What the gate that stopped the release said; when no recipe passed, why each of them did not."""
    summary = gate.judgement.summary if gate.judgement else ""
    if gate.stage != "choose":
        label = stage_label(gate)
        return f"{label[:1].upper()}{label[1:]}: {summary}"
    if chosen_recipes(results):
        return f"{gate.subject}: {summary}"
    tried = sorted((r for r in results.values() if r.stage == "accuracy" and r.judgement), key=_started)
    return " ".join((summary, *(f"{r.subject}: {r.judgement.summary}" for r in tried if r.judgement)))


def _serving(record: ReleaseRecord, results: Results, pointers: Mapping[str, PlaceState]) -> str:
    """Where the release serves; when another release put the same model repository there, that is said."""
    places = {
        name: place.production
        for name, place in pointers.items()
        if place.production and serves(place.production, record.release_id, results, name)
    }
    others = [place.release_id for place in places.values() if place.release_id != record.release_id]
    chosen = {target: recipe for target, recipe in chosen_recipes(results).items() if target in places}
    agree = len(set(chosen.values())) <= 1
    recipes = f"Recipe{'' if agree else 's'} {recipes_in_words(chosen)}" if chosen else record.release.name
    text = f"{recipes} serves on {', '.join(places)}." if agree else f"{recipes}: all of them serve."
    if not others:
        return text
    return f"{text} Release {others[0]} had put the very same model repository there: no traffic was shifted."


def _why(results: Results) -> str:
    gates = {recipe: results.get(("accuracy", recipe)) for recipe in dict.fromkeys(chosen_recipes(results).values())}
    why = {recipe: gate.judgement.summary for recipe, gate in gates.items() if gate and gate.judgement}
    return " ".join(why.values() if len(why) == 1 else (f"{recipe}: {text}" for recipe, text in why.items()))


def _progress(results: Results) -> str:
    working = [result for result in results.values() if not clears_up(result.stage)]
    if not working:
        return "No stage has finished yet."
    last = max(working, key=_started)
    return f"In progress: no gate has stopped it; last finished stage: {stage_label(last)}."


def released_facts(record: ReleaseRecord, results: Results, pointers: Mapping[str, PlaceState]) -> tuple[Fact, ...]:
    """Model, commit, recipe, targets and the digests of what is served."""
    release = record.release
    facts = [
        Fact(label="Release", value=record.release_id, code=True),
        Fact(label="Model", value=record.model.id),
        Fact(label="Commit", value=record.model.commit, code=True),
        Fact(label="Licence", value=record.model.license or "not stated"),
        Fact(
            label="Recipe",
            value=chosen_in_words(results) or f"none chosen of {', '.join(recipe.name for recipe in release.recipes)}",
        ),
        Fact(label="Baseline", value=release.baseline.dtype),
        Fact(label="Policy", value=release.policy.name),
        Fact(label="Resolved", value=record.created_at.strftime("%Y-%m-%d %H:%M:%S UTC")),
    ]
    if record.overrides:
        facts.append(Fact(label="Changed for this run", value=record.overrides_in_words))
    for target in release.targets:
        runtime = f" {target.runtime_version}" if target.runtime_version else ""
        facts.append(Fact(label="Target", value=f"{target.name}: {target.accelerator}, {target.engine}{runtime}"))
        facts += _digests(target.name, results)
        production = pointers.get(target.name, PlaceState()).production
        if production and serves(production, record.release_id, results, target.name):
            since = production.promoted_at.strftime("%Y-%m-%d %H:%M:%S UTC")
            facts.append(Fact(label=f"In production, {target.name}", value=f"slot {production.slot} since {since}"))
    return tuple(facts)


def _digests(target: str, results: Results) -> list[Fact]:
    facts = []
    for stage, name, label in (("build", "engine", "Engine"), ("package", "repository", "Model repository")):
        result = results.get((stage, target))
        if result and name in result.artifacts:
            facts.append(Fact(label=f"{label}, {target}", value=result.artifacts[name].digest, code=True))
    return facts
