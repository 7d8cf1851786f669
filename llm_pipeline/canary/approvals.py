"""The question whether a canary step may begin, and its answer: a document in the store; the first answer wins.

A step may begin only after a person approved it, or a canary keeps its weights and waits for a person. Both are one
question about one step of one run. It may be answered before it is asked (an approval task that runs ahead of the
step), and an answer that comes after the canary was rolled back changes nothing: it is kept as late, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.plan import CanaryPlan
from llm_pipeline.canary.record import CanaryRecord, Pause, PauseReason
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood

Question = Literal["begin", "go on"]
"""May the step begin; or: may a canary that waits at this step go on, as if the step had passed."""

Answer = Literal["waiting", "approved", "denied", "timed out"]

NOBODY = "nobody"
_TRIES = 5


class LateAnswer(Frozen):
    """An answer that came after the question was closed; times are seconds since 1970."""

    approved: bool
    by: str
    at: float


class StepApproval(Frozen):
    """A question and what became of it. Times are seconds since 1970.

    Attributes:
        run: The run of the release that it belongs to; answers of other runs do not count.
        summary: What is asked, for people.
        asked_at: None when it was answered before it was asked.
        asked_here: The same on the host that asked.
        deadline_seconds: How long it waits for an answer.
        by: Who answered.
        late: Answers that changed nothing.
    """

    run: str
    percent: float
    question: Question
    summary: str = ""
    asked_at: float | None = None
    asked_here: HostTime | None = None
    deadline_seconds: float = 0.0
    answer: Answer = "waiting"
    answered_at: float | None = None
    by: str = ""
    late: tuple[LateAnswer, ...] = ()

    def overdue(self, now: HostTime) -> bool:
        """Whether it waits for longer than it may."""
        if self.answer != "waiting" or self.asked_here is None:
            return False
        return now.seconds_since(self.asked_here) > self.deadline_seconds


def runs_of(record: CanaryRecord) -> set[str]:
    """The runs that answers to a canary's questions belong to."""
    return {record.run, record.began_run} - {""}


def approval_name(release_id: str, target: str, percent: float) -> str:
    """Name of the document of a step's question."""
    return f"releases/{release_id}/approvals/{target}-{percent:g}.json"


def read_approval(store: ArtifactStore, release_id: str, target: str, percent: float) -> StepApproval | None:
    """The question about a step; None if it was neither put nor answered."""
    return read_question(store, approval_name(release_id, target, percent))[0]


def read_question(store: ArtifactStore, name: str) -> tuple[StepApproval | None, str | None]:
    """A question by the name of its document, and its revision; twice None where there is none."""
    document = store.read_document(name)
    return (understood(StepApproval, document.value, name), document.revision) if document else (None, None)


def ask(
    store: ArtifactStore,
    release_id: str,
    target: str,
    percent: float,
    *,
    runs: Sequence[str],
    question: Question,
    summary: str,
    deadline_seconds: float,
    anew: bool = False,
) -> StepApproval:
    """Put the question, or return the one that was put or answered before.

    An answer of another run, or to another question about the step, does not count: the question is asked anew.

    Args:
        store: Where the canary's record is.
        release_id: The release on trial.
        target: The target's name.
        percent: The step.
        runs: The runs of the release whose answers count; the question is put by the first one.
        question: What is asked.
        summary: The same for people, with its reason.
        deadline_seconds: How long it waits for an answer.
        anew: Ask again if the question was already answered; one that still waits is kept.
    """
    name = approval_name(release_id, target, percent)
    for _ in range(_TRIES):
        known, revision = read_question(store, name)
        same = known is not None and known.run in runs and known.question == question
        if known is not None and same and not (anew and known.answer != "waiting"):
            return known
        here = HostTime.now()
        asked = StepApproval(
            run=runs[0],
            percent=percent,
            question=question,
            summary=summary,
            asked_at=here.wall,
            asked_here=here,
            deadline_seconds=deadline_seconds,
        )
        try:
            store.write_document(name, asked.model_dump(mode="json"), revision)
        except Conflict:
            continue
        return asked
    raise Conflict(f"{name} changes faster than it can be written")


def time_out(store: ArtifactStore, release_id: str, target: str, percent: float) -> StepApproval | None:
    """Close an unanswered question; returns it as it now is, perhaps answered at the last moment."""
    name = approval_name(release_id, target, percent)
    known, revision = read_question(store, name)
    if known is None or known.answer != "waiting":
        return known
    closed = known.model_copy(update={"answer": "timed out", "answered_at": time.time(), "by": NOBODY})
    try:
        store.write_document(name, closed.model_dump(mode="json"), revision)
    except Conflict:
        return read_approval(store, release_id, target, percent)
    return closed


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
            runs=[self._plan.run, *runs_of(record)],
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
