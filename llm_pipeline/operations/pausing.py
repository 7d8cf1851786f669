"""Pausing a running canary and resuming it: what a person asks for, at whatever door.

A pause moves nothing by itself: it is written into the place's document, and the canary's controller obeys it from its
next look on. It stays and watches on, so what is paused keeps its split and is still rolled back if it does harm.
Rollback and stop do not ask whether a canary is paused.
"""

from __future__ import annotations

import time

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.record import CanaryRecord, Phase, read_canary_record, utc
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PauseRequest, PlaceState, edit_place


class PauseReply(Frozen):
    """What became of a request.

    Attributes:
        counted: Whether it changed anything.
        message: For whoever asked.
    """

    counted: bool
    message: str


def pause(store: ArtifactStore, place: str, *, by: str, why: str = "") -> PauseReply:
    """Pause the canary of a place: it keeps its split until it is resumed, and is still rolled back if it does harm.

    Asked twice, it is done once: the deadline counts from the first time.

    Raises:
        ConfigError: Nothing is on trial there.
        Conflict: Others change the place all the time; the same call is safe again.
    """
    reply = PauseReply(counted=False, message="")

    def paused(state: PlaceState) -> PlaceState:
        nonlocal reply
        record, known = _on_trial(store, place, state), state.pause
        if late := _too_late(record):
            reply = late
        elif known is not None and known.holds(record.began_at):
            reply = _unchanged(f"{known.by} paused {_named(record)} at {utc(known.since)}")
        else:
            now, seconds = time.time(), record.policy.pause_deadline_seconds
            asked = PauseRequest(attempt=record.began_at, by=by, why=why, since=now, deadline_seconds=seconds)
            message = (
                f"paused: {_named(record)} keeps its {record.share_percent:g} % of the traffic from its next look on; "
                f"it is rolled back at {utc(now + seconds)} unless `llm-pipeline resume {place}` comes before"
            )
            reply = PauseReply(counted=True, message=message)
            return state.model_copy(update={"pause": asked})
        return state

    state = edit_place(store, place, paused)
    return (reply.counted and _too_late(_on_trial(store, place, state))) or reply  # it may have ended just now


def resume(store: ArtifactStore, place: str, *, by: str) -> PauseReply:
    """Let the paused canary of a place go on; what it was judged by meanwhile counts.

    Raises:
        ConfigError: Nothing is on trial there.
        Conflict: Others change the place all the time; the same call is safe again.
    """
    reply = PauseReply(counted=False, message="")

    def resumed(state: PlaceState) -> PlaceState:
        nonlocal reply
        record, known = _on_trial(store, place, state), state.pause
        if late := _too_late(record):
            reply = late
        elif known is None or not known.holds(record.began_at):
            reply = _unchanged(f"{_named(record)} is not paused")
        elif known.over(time.time()):
            reply = _late(f"nobody resumed {_named(record)} within {known.deadline_seconds:.0f} s")
        else:
            reply = PauseReply(counted=True, message=f"resumed: {_named(record)}")
            return state.model_copy(update={"pause": known.model_copy(update={"resumed_by": by})})
        return state

    edit_place(store, place, resumed)
    return reply


def _on_trial(store: ArtifactStore, place: str, state: PlaceState) -> CanaryRecord:
    record = read_canary_record(store, state.on_trial, place) if state.on_trial else None
    if record is None:
        raise ConfigError(f"nothing is on trial on {place}", hint="see `llm-pipeline status`")
    return record


def _named(record: CanaryRecord) -> str:
    return f"the canary of {record.release_id} on {record.target}"


def _too_late(record: CanaryRecord) -> PauseReply | None:
    over = record.settled or record.phase is Phase.ROLLING_BACK
    return _late(f"the canary of {record.release_id} is {record.phase.value}") if over else None


def _late(why: str) -> PauseReply:
    return PauseReply(counted=False, message=f"too late, nothing was changed: {why}")


def _unchanged(why: str) -> PauseReply:
    return PauseReply(counted=False, message=f"nothing was changed: {why}")
