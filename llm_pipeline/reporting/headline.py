"""A release's outcome in words: in one sentence, what exactly is released, what failed, how it stands to production."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.base.verdict import Verdict, worst
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.timeline import CanarySummary
from llm_pipeline.release.candidate import Candidate, is_trial, target_of
from llm_pipeline.release.choice import recipes_in_words
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.release.decision import Decision
from llm_pipeline.release.flow import clears_up, release_flow, step_named
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.release.step import Effect, Scope
from llm_pipeline.reporting.model import Fact, Headline, State
from llm_pipeline.store.place_state import PlaceState, Pointer


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
    canaries: Mapping[str, CanarySummary],
    *,
    failures: Sequence[StageFailure] = (),
    asides: Sequence[StageFailure] = (),
    question: Decision | None = None,
) -> Headline:
    """State, verdict and their sentences.

    Args:
        record: The release.
        results: Its results.
        pointers: What serves where.
        canaries: Those of its targets.
        failures: The errors that decided what became of it.
        asides: Those that did not.
        question: What was refused in this run, or still waits.
    """
    gates = [result for result in results.values() if result.judgement is not None and decides(result, results)]
    gates.sort(key=_started)
    trying = not any(gate.stage == "choose" for gate in gates) and any(gate.stage == "accuracy" for gate in gates)
    judged = [gate.judgement.verdict for gate in gates if gate.judgement and not (trying and gate.stage == "accuracy")]
    verdict = worst(judged) if judged else None
    if trying and verdict is Verdict.GO:  # recipes are still judged, and no gate before them stopped the release
        verdict = None
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
    elif state == "in production":
        sentence = f"{_serving(record, results, pointers)} {_why(results)}".strip()
    elif state == "replaced":
        sentence = f"It was in production; another release serves now. {_why(results)}".strip()
    else:
        stopped = [gate for gate in gates if gate.judgement and gate.judgement.verdict is not Verdict.GO]
        sentence = _stopped_by(stopped[-1], results) if state == "stopped" and stopped else _progress(results)
    if state == "failed":
        return Headline(state=state, verdict=None, sentence=_failures_in_words(failures))
    if failed := (*failures, *asides):
        sentence = f"{sentence.rstrip()} {_failures_in_words(failed)}"
    return Headline(state=state, verdict=verdict, sentence=sentence)


def _state(
    release_id: str,
    results: Results,
    pointers: Mapping[str, PlaceState],
    verdict: Verdict | None,
    failures: Sequence[StageFailure],
) -> State:
    if any(serves(place.production, release_id, results, name) for name, place in pointers.items()):
        return "in production"
    if any(failed.stage == "rollback" for failed in failures):
        return "failed"
    if ended_in_rollback(results):
        return "rolled back"
    if verdict in (None, Verdict.GO) and failures:
        return "failed"
    if any(stage == "settle" for stage, _ in results):
        return "replaced"
    return "on its way" if verdict in (None, Verdict.GO) else "stopped"


def _started(result: StageResult) -> tuple[datetime, str]:
    return result.timings.started_at, result.stage


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
        for stage, name, label in (("build", "engine", "Engine"), ("package", "repository", "Model repository")):
            result = results.get((stage, target.name))
            if result and name in result.artifacts:
                digest = result.artifacts[name].digest
                facts.append(Fact(label=f"{label}, {target.name}", value=digest, code=True))
        production = pointers.get(target.name, PlaceState()).production
        if production and serves(production, record.release_id, results, target.name):
            since = production.promoted_at.strftime("%Y-%m-%d %H:%M:%S UTC")
            facts.append(Fact(label=f"In production, {target.name}", value=f"slot {production.slot} since {since}"))
    return tuple(facts)


def flow_order(stage: str) -> int:
    """Where a stage stands in the flow."""
    names = [step.name for step in release_flow()]
    return names.index(stage) if stage in names else len(names)


def stops(failure: StageFailure, results: Results) -> bool:
    """Whether the release cannot go on without that stage, as it can without a recipe that was not chosen."""
    chosen, step = chosen_recipes(results).values(), step_named(failure.stage)
    recipe = step is not None and step.scope is Scope.RECIPE and bool(chosen) and failure.subject not in chosen
    clears_up = step is not None and not step.decides and step.effect is not Effect.PRODUCTION
    return not recipe and not clears_up and not is_trial(failure.stage, failure.subject)


def stage_label(one: StageResult | StageFailure) -> str:
    """Stage and subject, as people write them: `load test, cpu`."""
    return ", ".join(filter(None, (one.stage.replace("_", " "), one.subject)))


def failure_in_words(failed: StageFailure) -> str:
    """One failed stage, and its error on one line."""
    label, told = stage_label(failed), " ".join(failed.error.told.split())
    return f"{label[:1].upper()}{label[1:]} failed: {one_line(told, 320)}."


def _failures_in_words(failures: Sequence[StageFailure]) -> str:
    """The first failed stage, and how many more there are."""
    more = len(failures) - 1
    others = ", ".join(map(stage_label, failures[1:]))
    return failure_in_words(failures[0]) + (f" {more} more failed: {others}." if more else "")


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


def ended_in_rollback(results: Results) -> bool:
    """The rollback stage runs after every release; only its phase says whether it moved traffic back."""
    last = _last(results, None)
    return last is not None and last.metrics.get("phase") == Phase.ROLLED_BACK.value


def rollback_in_words(
    results: Results, pointers: Mapping[str, PlaceState], canaries: Mapping[str, CanarySummary]
) -> str:
    """For each target: what was caught, and what serves."""
    texts = []
    for target, place in pointers.items():
        last = _last(results, target)
        if last is None or last.metrics.get("phase") != Phase.ROLLED_BACK.value:
            continue
        canary, step = canaries.get(target), _last(results, target, "canary")
        rollback = canary.rollback if canary else None
        judged = step.judgement if step and step.judgement and step.judgement.verdict is not Verdict.GO else None
        at_step = f" at the {rollback.percent:g} % step" if rollback and rollback.percent else ""
        reason = judged.summary if judged else (rollback.summary if rollback else "") or "no gate asked for it"
        texts.append(f"Taken back on {target}{at_step}: {reason.rstrip('.')}.")
        if last.metrics.get("traffic_confirmed") == 0:
            texts.append("The router has not confirmed that traffic is back on stable.")
        if place.production is not None:
            texts.append(f"Recipe {place.production.recipe} of release {place.production.release_id} serves.")
    return " ".join(texts)


def _last(results: Results, target: str | None, *stages: str) -> StageResult | None:
    """The last result of a target, or of all, of the canary and the rollback, or of some stages."""
    wanted = stages or ("canary", "rollback")
    found = [one for one in results.values() if one.stage in wanted and target in (None, target_of(one.subject))]
    return max(found, key=_started, default=None)
