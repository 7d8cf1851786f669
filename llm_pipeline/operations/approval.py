"""Approval of a canary's step: one answer, whoever gives it, on the command line, in Airflow or at the terminal.

The first answer wins. One that comes after the canary was rolled back changes nothing.
"""

from __future__ import annotations

import time

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.approvals import runs_of
from llm_pipeline.canary.record import CanaryRecord, Phase, read_canary_record
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, StepApproval, edit_place


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
        target: The place.
        percent: The step.
        approved: The answer.
        by: Who answers.
        run: The run of the release, for an answer ahead of the question; by default that of the question, or of the
            canary as it stands.

    Raises:
        ConfigError: There is no such canary, and no run to answer for.
    """
    word = "approved" if approved else "denied"
    asked: StepApproval | None = None
    late = ""

    def answered(state: PlaceState) -> PlaceState:
        nonlocal asked, late
        record = read_canary_record(store, release_id, target)
        asked = _question(state.approval(release_id, percent), record, release_id, percent, run)
        late = _why_late(asked, record)
        if late:
            return state
        asked = asked.model_copy(update={"answer": word, "answered_at": time.time(), "by": by})
        return state.with_approval(asked)

    edit_place(store, target, answered)
    if asked is None:  # never: it was asked of the edit
        raise ConfigError(f"release {release_id} has no canary on {target}")
    message = f"too late, nothing was changed: {late}" if late else f"{word}: step {percent:g} %"
    return Answered(counted=not late, message=message, approval=asked)


def _question(
    known: StepApproval | None, record: CanaryRecord | None, release_id: str, percent: float, run: str
) -> StepApproval:
    """The question that an answer is for; a new one if the answer comes before the question."""
    runs = {run} if run else set()
    if record is not None and (not run or not record.settled or run in runs_of(record)):
        runs |= runs_of(record)
    if known is not None and (known.run in runs or not runs):
        return known
    if not runs:
        raise ConfigError(f"release {release_id} has no canary on its place", hint="see `llm-pipeline show` for its id")
    wanted = run or (record.began_run if record else "")
    return StepApproval(release_id=release_id, run=wanted, percent=percent, question="begin")


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
