"""The question whether a canary step may begin, or a canary that waits may go on, and its answer.

It is part of the place's document; the first answer wins. It may be answered before it is asked (an approval task that
runs ahead of the step), and an answer that comes after the canary was rolled back changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from llm_pipeline.canary.plan import CanaryPlan
from llm_pipeline.canary.record import CanaryRecord, Pause
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, Question, StepApproval, edit_place, read_place

NOBODY = "nobody"


def runs_of(record: CanaryRecord) -> set[str]:
    """The runs that answers to a canary's questions belong to."""
    return {record.run, record.began_run} - {""}


def read_approval(store: ArtifactStore, release_id: str, target: str, percent: float) -> StepApproval | None:
    """The question about a step; None if it was neither put nor answered."""
    return read_place(store, target).approval(release_id, percent)


def ask(
    store: ArtifactStore,
    release_id: str,
    target: str,
    percent: float,
    *,
    run: str,
    also: Iterable[str] = (),
    question: Question,
    summary: str,
    deadline_seconds: float,
) -> StepApproval:
    """Put the question, or return the one that was put or answered before.

    An answer of another run, or to another question about the step, does not count: the question is asked anew.

    Args:
        store: Where the place's document is.
        release_id: The release on trial.
        target: The place.
        percent: The step.
        run: The run of the release that asks.
        also: Other runs whose answers count.
        question: What is asked.
        summary: The same for people, with its reason.
        deadline_seconds: How long it waits for an answer.
    """
    runs = {run, *also}
    asked = StepApproval(
        release_id=release_id,
        run=run,
        percent=percent,
        question=question,
        summary=summary,
        asked_at=time.time(),
        deadline_seconds=deadline_seconds,
    )

    def put(state: PlaceState) -> PlaceState:
        known = state.approval(release_id, percent)
        stands = known is not None and known.run in runs and known.question == question
        return state if stands else state.with_approval(asked)

    return edit_place(store, target, put).approval(release_id, percent) or asked


def time_out(store: ArtifactStore, release_id: str, target: str, percent: float) -> StepApproval | None:
    """Close an unanswered question; returns it as it now is, perhaps answered at the last moment."""

    def closed(state: PlaceState) -> PlaceState:
        known = state.approval(release_id, percent)
        if known is None or known.answer != "waiting":
            return state
        over = {"answer": "timed out", "answered_at": time.time(), "by": NOBODY}
        return state.with_approval(known.model_copy(update=over))

    return edit_place(store, target, closed).approval(release_id, percent)


def standing(state: PlaceState, record: CanaryRecord, percent: float, question: Question) -> StepApproval | None:
    """A canary's question as it stands, perhaps answered ahead; None if its runs neither put nor answered it."""
    known = state.approval(record.release_id, percent)
    mine = known is not None and known.run in runs_of(record) and known.question == question
    return known if mine else None


def put(store: ArtifactStore, plan: CanaryPlan, record: CanaryRecord, pause: Pause) -> None:
    """Have the question of a paused canary in the place's document."""
    undecided = record.judgement if pause.question == "go on" else None
    why = undecided.summary if undecided is not None else "the step needs an approval"
    ask(
        store,
        plan.release_id,
        plan.target,
        pause.percent,
        run=plan.run,
        also=runs_of(record),
        question=pause.question,
        summary=f"{why}. {command(plan, pause.percent)}",
        deadline_seconds=pause.deadline_seconds,
    )


def command(plan: CanaryPlan, percent: float) -> str:
    """What a person types to answer."""
    return f"llm-pipeline approve-step {plan.release_id} {plan.target} {percent:g} [--deny]"
