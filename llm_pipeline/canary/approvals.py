"""The question whether a canary step may begin, or a canary that waits may go on, and its answer.

It is part of the place's document; the first answer wins. It may be answered before it is asked (an approval task that
runs ahead of the step), and an answer that comes after the canary was rolled back changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from llm_pipeline.base.host_time import HostTime
from llm_pipeline.canary.plan import CanaryPlan
from llm_pipeline.canary.record import CanaryRecord, Pause, PauseReason
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
    anew: bool = False,
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
        anew: Ask again if the question was already answered; one that still waits is kept.
    """
    here, runs = HostTime.now(), {run, *also}
    asked = StepApproval(
        release_id=release_id,
        run=run,
        percent=percent,
        question=question,
        summary=summary,
        asked_at=here.wall,
        asked_here=here,
        deadline_seconds=deadline_seconds,
    )

    def put(state: PlaceState) -> PlaceState:
        known = state.approval(release_id, percent)
        same = known is not None and known.run in runs and known.question == question
        stands = same and not (anew and known is not None and known.answer != "waiting")
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


class Questions:
    """The questions of one plan, in its store."""

    def __init__(self, store: ArtifactStore, plan: CanaryPlan) -> None:
        self._store = store
        self._plan = plan

    def ask(self, record: CanaryRecord, percent: float, reason: PauseReason, *, anew: bool = False) -> StepApproval:
        """Put the question, or return it as it stands; with `anew` an earlier answer does not count."""
        begin = reason is PauseReason.APPROVAL
        why = "the step needs an approval" if begin or record.judgement is None else record.judgement.summary
        return ask(
            self._store,
            self._plan.release_id,
            self._plan.target,
            percent,
            run=self._plan.run,
            also=runs_of(record),
            question="begin" if begin else "go on",
            summary=f"{why}. {self.command(percent)}",
            deadline_seconds=self._plan.policy.pause_deadline_seconds,
            anew=anew,
        )

    def answer(self, record: CanaryRecord, pause: Pause) -> StepApproval:
        """The question that a paused canary waits for; it is closed once its deadline has passed."""
        approval, now = self.ask(record, pause.percent, pause.reason), HostTime.now()
        if approval.answer != "waiting" or not (pause.over(now) or approval.overdue(now)):
            return approval
        closed = time_out(self._store, self._plan.release_id, self._plan.target, pause.percent)
        return closed or approval

    def command(self, percent: float) -> str:
        """What a person types to answer."""
        return f"llm-pipeline approve-step {self._plan.release_id} {self._plan.target} {percent:g} [--deny]"
