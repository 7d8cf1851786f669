"""Approval of a canary's step: one answer, whoever gives it, on the command line, in Airflow or at the terminal.

The first answer wins. One that comes after the canary was rolled back changes nothing: it is kept as late, and says so.
"""

from __future__ import annotations

import time

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.approvals import LateAnswer, StepApproval, approval_name, read_question, runs_of
from llm_pipeline.canary.record import CanaryRecord, Phase, read_canary_record
from llm_pipeline.operations.acting import despite_others
from llm_pipeline.store.artifact_store import ArtifactStore


class Answered(Frozen):
    """What an answer came to.

    Attributes:
        counted: Whether it changed anything.
        message: For whoever answered.
    """

    counted: bool
    message: str
    approval: StepApproval


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

    def attempt() -> Answered:
        known, revision = read_question(store, name)
        record = read_canary_record(store, release_id, target)
        asked = _question(known, record, percent, run)
        if asked is None:
            raise ConfigError(
                f"release {release_id} has no canary on {target}", hint="see `llm-pipeline show` for its id"
            )
        result = _answered(asked, record, approved=approved, by=by)
        store.write_document(name, result.approval.model_dump(mode="json"), revision)
        return result

    return despite_others(attempt)


def _question(known: StepApproval | None, record: CanaryRecord | None, percent: float, run: str) -> StepApproval | None:
    """The question that an answer is for; a new one if the answer comes before the question."""
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
