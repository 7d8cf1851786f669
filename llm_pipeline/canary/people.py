"""What people say of a canary: a step may begin, or go on; the canary is paused, or resumed.

Each is an edit of the place's document, and moves nothing by itself. The first answer to a question wins. It may be
given before it is asked (an approval task that runs ahead of the step), and one that comes after the canary was rolled
back changes nothing.

A pause is obeyed by the canary's controller from its next look on. It stays and watches on, so what is paused keeps its
split and is still rolled back if it does harm. Rollback and stop do not ask whether a canary is paused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.record import CanaryRecord, latest_canary, read_canary_record, utc
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PauseRequest, PlaceState, Question, StepApproval, edit_place


def runs_of(record: CanaryRecord) -> set[str]:
    """The runs that answers to a canary's questions belong to."""
    return {record.run, record.began_run} - {""}


def ask(store: ArtifactStore, target: str, asked: StepApproval, *, also: Iterable[str] = ()) -> StepApproval:
    """Put the question, or return the one that was put or answered before.

    An answer of another run, or to another question about the step, does not count: the question is asked anew.

    Args:
        store: Where the place's document is.
        target: The place.
        asked: The question.
        also: Other runs than its own whose answers count.
    """
    runs = {asked.run, *also}

    def put(state: PlaceState) -> PlaceState:
        known = state.approval(asked.release_id, asked.percent)
        stands = known is not None and known.run in runs and known.question == asked.question
        return state if stands else state.with_approval(asked)

    return edit_place(store, target, put).approval(asked.release_id, asked.percent) or asked


def standing(state: PlaceState, record: CanaryRecord, percent: float, question: Question) -> StepApproval | None:
    """A canary's question as it stands, perhaps answered ahead; None if its runs neither put nor answered it."""
    known = state.approval(record.release_id, percent)
    mine = known is not None and known.run in runs_of(record) and known.question == question
    return known if mine else None


class Reply(Frozen):
    """What became of what a person asked for.

    Attributes:
        counted: Whether it changed anything.
        message: For whoever asked.
    """

    counted: bool
    message: str


class Answered(Reply):
    """The same, with the question as it stands."""

    approval: StepApproval


def answer(
    store: ArtifactStore, release_id: str, target: str, percent: float, *, approved: bool | None, by: str, run: str = ""
) -> Answered:
    """Answer the question about a step, by a person or in the person's name.

    Args:
        store: Where the canary's record is.
        release_id: The release on trial.
        target: The place.
        percent: The step.
        approved: The answer; None where nobody gave one in time.
        by: Who answers.
        run: The run of the release, for an answer ahead of the question; by default that of the question, or of the
            canary as it stands.

    Raises:
        ConfigError: There is no such canary, and no run to answer for.
    """
    word, late = "timed out" if approved is None else "approved" if approved else "denied", ""
    asked = StepApproval(release_id=release_id, run=run, percent=percent, question="begin")

    def answered(state: PlaceState) -> PlaceState:
        nonlocal asked, late
        record, known = read_canary_record(store, release_id, target), state.approval(release_id, percent)
        runs = {run} - {""}
        if record is not None and (not run or not record.settled or run in runs_of(record)):
            runs |= runs_of(record)
        if known is not None and (known.run in runs or not runs):
            asked = known
        elif not runs:
            hint = "see `llm-pipeline show` for its id"
            raise ConfigError(f"release {release_id} has no canary on its place", hint=hint)
        elif record is not None and not run:  # the answer comes before the question
            asked = asked.model_copy(update={"run": record.began_run})
        late = _why_late(asked, record)
        if late:
            return state
        asked = asked.model_copy(update={"answer": word, "answered_at": time.time(), "by": by})
        return state.with_approval(asked)

    edit_place(store, target, answered)
    message = f"too late, nothing was changed: {late}" if late else f"{word}: step {percent:g} %"
    return Answered(counted=not late, message=message, approval=asked)


def _why_late(asked: StepApproval, record: CanaryRecord | None) -> str:
    if asked.answer == "timed out":
        return f"nobody answered within {asked.deadline_seconds:.0f} s"
    if asked.answer != "waiting":
        return f"it was {asked.answer} by {asked.by}"
    if record is None or asked.run not in runs_of(record):
        return ""
    if record.decided:
        return f"the canary is {record.phase.value}"
    if asked.question == "begin" and asked.percent <= record.passed_percent:
        return f"step {asked.percent:g} % has passed"
    return ""


def pause(store: ArtifactStore, place: str, *, by: str, why: str = "") -> Reply:
    """Pause the canary of a place: it keeps its split until it is resumed, and is still rolled back if it does harm.

    Asked twice, it is done once: the deadline counts from the first time.

    Raises:
        ConfigError: Nothing is on trial there.
        Conflict: Others change the place all the time; the same call is safe again.
    """
    record = _on_trial(store, place)
    name = f"the canary of {record.release_id} on {record.target}"
    if record.decided:
        return Reply(counted=False, message=f"nothing was changed: {name} is {record.phase.value}")
    now, seconds = time.time(), record.policy.pause_deadline_seconds
    asked = PauseRequest(attempt=record.began_at, by=by, why=why, since=now, deadline_seconds=seconds)

    def paused(state: PlaceState) -> PlaceState:
        holds = state.pause is not None and state.pause.holds(record.began_at)
        return state if holds else state.model_copy(update={"pause": asked})

    standing = edit_place(store, place, paused).pause or asked
    message = (
        f"paused: {name} keeps its {record.share_percent:g} % of the traffic from its next look on; "
        f"it is rolled back at {utc(now + seconds)} unless `llm-pipeline resume {place}` comes before"
    )
    if standing != asked:
        message = f"nothing was changed: {standing.by} paused {name} at {utc(standing.since)}"
    return Reply(counted=standing == asked, message=message)


def resume(store: ArtifactStore, place: str, *, by: str) -> Reply:
    """Let the paused canary of a place go on; what it was judged by meanwhile counts.

    Raises:
        ConfigError: Nothing is on trial there.
        Conflict: Others change the place all the time; the same call is safe again.
    """
    record, why = _on_trial(store, place), ""
    name = f"the canary of {record.release_id} on {record.target}"

    def resumed(state: PlaceState) -> PlaceState:
        nonlocal why
        known = state.pause
        if record.decided:
            why = f"{name} is {record.phase.value}"
        elif known is None or not known.holds(record.began_at):
            why = f"{name} is not paused"
        elif known.over(time.time()):
            why = f"nobody resumed {name} within {known.deadline_seconds:.0f} s"
        else:
            return state.model_copy(update={"pause": known.model_copy(update={"resumed_by": by})})
        return state

    edit_place(store, place, resumed)
    return Reply(counted=not why, message=f"nothing was changed: {why}" if why else f"resumed: {name}")


def _on_trial(store: ArtifactStore, place: str) -> CanaryRecord:
    record = latest_canary(store, place)
    if record is None:
        raise ConfigError(f"nothing is on trial on {place}", hint="see `llm-pipeline status`")
    return record
