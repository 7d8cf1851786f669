"""What became of a release, in one sentence, and what exactly is released."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from llm_pipeline.canary.record import Phase
from llm_pipeline.release_record import ReleaseRecord
from llm_pipeline.reporting.model import Fact, Headline, State
from llm_pipeline.stages.contract import StageResult
from llm_pipeline.store.pointers import Pointer, Pointers
from llm_pipeline.verdict import Verdict, worst

_ALWAYS_RUN = ("staging_down", "rollback", "report")
"""Stages that run after the others whatever became of them: they say nothing of how far a release got."""

Results = Mapping[tuple[str, str], StageResult]


def chosen_recipe(results: Results) -> str | None:
    """The recipe that is released; None before the choice, or when no recipe passed."""
    choice = results.get(("choose", ""))
    recipe = choice.metrics.get("recipe") if choice else None
    return str(recipe) if recipe else None


def decides(result: StageResult, results: Results) -> bool:
    """Whether a gate bears on the release: the gate of a recipe that was not chosen does not, once one was."""
    chosen = chosen_recipe(results)
    return not (result.stage == "accuracy" and chosen is not None and result.subject != chosen)


def release_headline(record: ReleaseRecord, results: Results, pointers: Mapping[str, Pointers]) -> Headline:
    """State, verdict and the sentence that explains them."""
    gates = [result for result in results.values() if result.judgement is not None and decides(result, results)]
    gates.sort(key=lambda result: result.timings.started_at)
    verdict = worst(gate.judgement.verdict for gate in gates if gate.judgement) if gates else None
    if not any(gate.stage == "choose" for gate in gates) and any(gate.stage == "accuracy" for gate in gates):
        verdict = None
    state = _state(record.release_id, results, pointers, verdict)
    return Headline(state=state, verdict=verdict, sentence=_sentence(state, record, results, pointers, gates))


def _state(release_id: str, results: Results, pointers: Mapping[str, Pointers], verdict: Verdict | None) -> State:
    if any(_is(place.production, release_id) for place in pointers.values()):
        return "in production"
    if _ended_in_rollback(results):
        return "rolled back"
    if any(stage == "settle" for stage, _ in results):
        return "replaced"
    return "on its way" if verdict in (None, Verdict.GO) else "stopped"


def _ended_in_rollback(results: Results) -> bool:
    """The rollback stage runs after every release; only its phase tells whether it took traffic back."""
    last = max((r for r in results.values() if r.stage in ("canary", "rollback")), key=_started, default=None)
    return last is not None and last.metrics.get("phase") == Phase.ROLLED_BACK.value


def _started(result: StageResult) -> tuple[datetime, str]:
    return result.timings.started_at, result.stage


def _is(pointer: Pointer | None, release_id: str) -> bool:
    return pointer is not None and pointer.release_id == release_id


def _sentence(
    state: State,
    record: ReleaseRecord,
    results: Results,
    pointers: Mapping[str, Pointers],
    gates: list[StageResult],
) -> str:
    failed = [gate for gate in gates if gate.judgement and gate.judgement.verdict is not Verdict.GO]
    if state == "in production":
        serving = [name for name, place in pointers.items() if _is(place.production, record.release_id)]
        return (
            f"{chosen_recipe(results) or record.release.name} serves on {', '.join(serving)}. {_why(results)}".strip()
        )
    if state in ("stopped", "rolled back") and failed:
        last = failed[-1]
        subject = f" ({last.subject})" if last.subject else ""
        return (
            f"{last.stage.replace('_', ' ').capitalize()}{subject}: {last.judgement.summary if last.judgement else ''}"
        )
    if state == "rolled back":
        return "It was taken out of production again; no gate asked for it."
    if state == "replaced":
        return f"It was in production; another release serves now. {_why(results)}".strip()
    return _progress(results)


def _why(results: Results) -> str:
    gate = results.get(("accuracy", chosen_recipe(results) or ""))
    return gate.judgement.summary if gate and gate.judgement else ""


def _progress(results: Results) -> str:
    working = [result for result in results.values() if result.stage not in _ALWAYS_RUN]
    if not working:
        return "No stage has finished yet."
    last = max(working, key=_started)
    subject = f" ({last.subject})" if last.subject else ""
    return f"No gate has stopped it so far; the last finished stage is {last.stage.replace('_', ' ')}{subject}."


def released_facts(record: ReleaseRecord, results: Results, pointers: Mapping[str, Pointers]) -> tuple[Fact, ...]:
    """Model, commit, recipe, targets and the digests of what is served."""
    release, chosen = record.release, chosen_recipe(results)
    facts = [
        Fact(label="Model", value=record.model.id),
        Fact(label="Commit", value=record.model.commit, code=True),
        Fact(label="Licence", value=record.model.license or "not stated"),
        Fact(label="Recipe", value=chosen or f"none of {', '.join(recipe.name for recipe in release.recipes)} so far"),
        Fact(label="Baseline", value=release.baseline.dtype),
        Fact(label="Policy", value=release.policy.name),
        Fact(label="Resolved", value=record.created_at.strftime("%Y-%m-%d %H:%M:%S UTC")),
    ]
    for target in release.targets:
        runtime = f" {target.runtime_version}" if target.runtime_version else ""
        facts.append(Fact(label="Target", value=f"{target.name}: {target.accelerator}, {target.engine}{runtime}"))
        facts += _digests(target.name, results)
        if _is(production := pointers.get(target.name, Pointers()).production, record.release_id) and production:
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
