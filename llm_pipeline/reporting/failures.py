"""Errors that stages of a release ended with, in words."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.base.errors import ErrorDocument, runbook
from llm_pipeline.release.candidate import is_trial
from llm_pipeline.release.contract import StageFailure
from llm_pipeline.release.flow import release_flow, step_named
from llm_pipeline.release.step import Effect, Scope
from llm_pipeline.reporting.model import FailedStage, stage_label
from llm_pipeline.reporting.production import Results, chosen_recipes
from llm_pipeline.store import ArtifactStore

_LONGEST_MESSAGE = 320


def read_failures(store: ArtifactStore, release_id: str, results: Results, gaps: list[str]) -> tuple[FailedStage, ...]:
    """Every stage that ended with an error, in the order of the flow; what cannot be read is added to `gaps`.

    An earlier report's error is left out: the report that is being made now stands for it.
    """
    failures = []
    for name in store.list_documents(f"releases/{release_id}/failures"):
        document = store.read_document(name)
        if document is None:
            continue
        try:
            failure = StageFailure.model_validate(document.value)
        except ValueError as error:
            gaps.append(f"{name} is not a stage's error: {error}")
            continue
        if failure.stage != "report":
            failures.append(_failed(failure, results))
    return tuple(sorted(failures, key=lambda failed: (flow_order(failed.stage), failed.subject)))


def flow_order(stage: str) -> int:
    """Where a stage stands in the flow."""
    names = [step.name for step in release_flow()]
    return names.index(stage) if stage in names else len(names)


def _failed(failure: StageFailure, results: Results) -> FailedStage:
    chosen = chosen_recipes(results).values()
    step = step_named(failure.stage)
    recipe = step is not None and step.scope is Scope.RECIPE and bool(chosen) and failure.subject not in chosen
    aside = recipe or is_trial(failure.stage, failure.subject)
    clears_up = step is not None and not step.decides and step.effect is not Effect.PRODUCTION
    decides = not aside and not clears_up
    return FailedStage(stage=failure.stage, subject=failure.subject, decides=decides, error=failure.error)


def failure_in_words(failed: FailedStage) -> str:
    """One failed stage as a sentence: the stage, the error, where, and what to do."""
    error = failed.error
    where = f", at {error.where}" if error.where else ""
    label = stage_label(failed)
    label = label[:1].upper() + label[1:]
    return f"{label} failed with {error.type}{where}: {_shortened(error.message)} {advice(error)}"


def failures_in_words(failures: Sequence[FailedStage]) -> str:
    """The first failed stage as a sentence, and how many more there are."""
    more = len(failures) - 1
    others = ", ".join(map(stage_label, failures[1:]))
    return failure_in_words(failures[0]) + (f" {more} more failed: {others}." if more else "")


def advice(error: ErrorDocument) -> str:
    """What to do about an error, and its runbook."""
    words = "Trying again may help" if error.family == "transient" else "Trying again cannot help"
    if error.hint:
        words = "What to do: " + error.hint.rstrip(".")
    return f"{words} ({runbook(error.type)})."


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return _ended(line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 1]}…")


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
