"""What a person is asked about a canary's step, and the answer: a document in the store, first answer wins.

A step may begin only after a person approved it, or a canary keeps its weights and waits for a person. Both are one
question about one step of one run. It may be answered before it is asked (an approval task that runs ahead of the
step), and an answer that comes after the canary was rolled back changes nothing: it is kept as late, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.record import CanaryRecord, Phase, read_record
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood

Question = Literal["begin", "go on"]
"""May the step begin; or: may a canary that waits at this step go on, as if the step had passed."""

Answer = Literal["waiting", "approved", "denied", "timed out"]

NOBODY = "nobody"
_TRIES = 5


class LateAnswer(Frozen):
    """An answer that came when there was nothing to answer any more; times are seconds since 1970."""

    approved: bool
    by: str
    at: float


class StepApproval(Frozen):
    """A question and what became of it. Times are seconds since 1970.

    Attributes:
        run: The run of the release that it belongs to; another run's is none of ours.
        summary: What is asked, for people.
        asked_at: None when it was answered before it was asked.
        deadline_seconds: So long it waits for an answer.
        by: Who answered.
        late: Answers that changed nothing.
    """

    run: str
    percent: float
    question: Question
    summary: str = ""
    asked_at: float | None = None
    deadline_seconds: float = 0.0
    answer: Answer = "waiting"
    answered_at: float | None = None
    by: str = ""
    late: tuple[LateAnswer, ...] = ()

    def overdue(self, now: float) -> bool:
        """Whether it waits for longer than it may."""
        return self.answer == "waiting" and self.asked_at is not None and now - self.asked_at > self.deadline_seconds


class Answered(Frozen):
    """What an answer came to.

    Attributes:
        counted: Whether it changed anything.
        message: For whoever answered.
    """

    counted: bool
    message: str
    approval: StepApproval


def runs_of(record: CanaryRecord) -> set[str]:
    """The runs that answers to a canary's questions belong to."""
    return {record.run, record.began_run} - {""}


def approval_name(release_id: str, target: str, percent: float) -> str:
    """Name of the document of a step's question."""
    return f"releases/{release_id}/approvals/{target}-{percent:g}.json"


def read_approval(store: ArtifactStore, release_id: str, target: str, percent: float) -> StepApproval | None:
    """The question about a step as it stands; None when nobody asked or answered."""
    name = approval_name(release_id, target, percent)
    document = store.read_document(name)
    return understood(StepApproval, document.value, name) if document else None


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
    """Ask, or find the question that was asked or answered before.

    An answer of another run, or to another question about the step, does not count: the question is asked anew.

    Args:
        store: Where the canary's record is.
        release_id: The release on trial.
        target: The target's name.
        percent: The step.
        runs: The runs of the release whose answers count; the question is put by the first one.
        question: What is asked.
        summary: The same for people, with its reason.
        deadline_seconds: So long it waits for an answer.
        anew: An answer of before does not count; a question that still waits does.
    """
    name = approval_name(release_id, target, percent)
    for _ in range(_TRIES):
        document = store.read_document(name)
        known = understood(StepApproval, document.value, name) if document else None
        same = known is not None and known.run in runs and known.question == question
        if known is not None and same and not (anew and known.answer != "waiting"):
            return known
        asked = StepApproval(
            run=runs[0],
            percent=percent,
            question=question,
            summary=summary,
            asked_at=time.time(),
            deadline_seconds=deadline_seconds,
        )
        try:
            store.write_document(name, asked.model_dump(mode="json"), document.revision if document else None)
        except Conflict:
            continue
        return asked
    raise Conflict(f"{name} changes faster than it can be written")


def answer(
    store: ArtifactStore, release_id: str, target: str, percent: float, *, approved: bool, by: str, run: str = ""
) -> Answered:
    """Answer the question about a step, by a person or in the person's name.

    Args:
        store: Where the canary's record is.
        release_id: The release on trial.
        target: The target's name.
        percent: The step.
        approved: The answer.
        by: Who answers.
        run: The run of the release, for an answer ahead of the question; by default that of the question, or of the
            canary as it stands.

    Raises:
        ConfigError: There is no such canary, and no run to answer for.
    """
    name = approval_name(release_id, target, percent)
    for _ in range(_TRIES):
        document = store.read_document(name)
        known = understood(StepApproval, document.value, name) if document else None
        record = read_record(store, release_id, target)
        asked = _question(known, record, percent, run)
        if asked is None:
            raise ConfigError(
                f"release {release_id} has no canary on {target}", hint="see `llm-pipeline show` for its id"
            )
        result = _answered(asked, record, approved=approved, by=by)
        value = result.approval.model_dump(mode="json")
        try:
            store.write_document(name, value, document.revision if document else None)
        except Conflict:
            continue
        return result
    raise Conflict(f"{name} changes faster than it can be written")


def time_out(store: ArtifactStore, release_id: str, target: str, percent: float) -> StepApproval | None:
    """Close a question that nobody answered; the one that stands is returned, answered at the last moment or not."""
    name = approval_name(release_id, target, percent)
    document = store.read_document(name)
    known = understood(StepApproval, document.value, name) if document else None
    if document is None or known is None or known.answer != "waiting":
        return known
    closed = known.model_copy(update={"answer": "timed out", "answered_at": time.time(), "by": NOBODY})
    try:
        store.write_document(name, closed.model_dump(mode="json"), document.revision)
    except Conflict:
        return read_approval(store, release_id, target, percent)
    return closed


def _question(known: StepApproval | None, record: CanaryRecord | None, percent: float, run: str) -> StepApproval | None:
    """The question that an answer is to; one that nobody asked yet when it comes ahead."""
    runs = {run} if run else set()
    if record is not None and (not run or not record.settled or run in runs_of(record)):
        runs |= runs_of(record)
    if known is not None and (known.run in runs or not runs):
        return known
    wanted = run or (record.began_run if record else "")
    return StepApproval(run=wanted, percent=percent, question="begin") if runs else None


def _answered(asked: StepApproval, record: CanaryRecord | None, *, approved: bool, by: str) -> Answered:
    word, now = ("approved" if approved else "denied"), time.time()
    why_late = _why_late(asked, record)
    if not why_late:
        update = {"answer": word, "answered_at": now, "by": by}
        return Answered(
            counted=True,
            message=f"{word}: step {asked.percent:g} %",
            approval=asked.model_copy(update=update),
        )
    late = (*asked.late, LateAnswer(approved=approved, by=by, at=now))[-10:]
    return Answered(
        counted=False,
        message=f"too late, nothing was changed: {why_late}",
        approval=asked.model_copy(update={"late": late}),
    )


def _why_late(asked: StepApproval, record: CanaryRecord | None) -> str:
    if asked.answer == "timed out":
        return f"nobody answered within {asked.deadline_seconds:.0f} s"
    if asked.answer != "waiting":
        return f"it was {asked.answer} by {asked.by}"
    if record is None or asked.run not in runs_of(record):
        return ""
    if record.settled or record.phase is Phase.ROLLING_BACK:
        return f"the canary is {record.phase.value}"
    if asked.question == "begin" and asked.percent <= record.passed_percent:
        return f"step {asked.percent:g} % has passed"
    return ""
