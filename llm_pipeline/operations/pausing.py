"""Pausing a running canary and resuming it: what a person asks for, at whatever door.

A pause moves nothing by itself: it is a document that the canary's controller obeys from its next look on (see
`canary.pause_request`). The controller holds the place's lease all the while, so neither act takes it; of two who ask
at the same moment one is first, by compare-and-swap. Rollback and stop do not ask whether a canary is paused.
"""

from __future__ import annotations

import time

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.pause_request import PauseRequest, pause_name, utc
from llm_pipeline.canary.record import CanaryRecord, Phase, latest_canary
from llm_pipeline.operations.acting import despite_others
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood


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

    PauseReply twice, it is done once: the deadline counts from the first time.

    Raises:
        ConfigError: Nothing is on trial there.
        Conflict: Others ask for the same all the time; the same call is safe again.
    """

    def attempt() -> PauseReply:
        record, known, revision = _found(store, place)
        if late := _too_late(record, None):
            return late
        if known is not None and known.holds(record.began_at):
            name = f"the canary of {record.release_id} on {place}"
            return _unchanged(f"{known.by} paused {name} at {utc(known.since)}")
        now = HostTime.now()
        asked = PauseRequest(
            attempt=record.began_at,
            by=by,
            why=why,
            since=now.wall,
            began=now,
            deadline_seconds=record.rules.pause_deadline_seconds,
        )
        _write(store, record, asked, revision)
        return _too_late(_on_trial(store, place), None) or PauseReply(counted=True, message=_paused(record, asked))

    return despite_others(attempt)


def resume(store: ArtifactStore, place: str, *, by: str) -> PauseReply:
    """Let the paused canary of a place go on; what it was judged by meanwhile counts.

    Raises:
        ConfigError: Nothing is on trial there.
        Conflict: Others ask for the same all the time; the same call is safe again.
    """

    def attempt() -> PauseReply:
        record, known, revision = _found(store, place)
        if late := _too_late(record, known):
            return late
        if known is None or not known.holds(record.began_at):
            return _unchanged(f"the canary of {record.release_id} on {place} is not paused")
        ended = known.model_copy(update={"resumed_at": time.time(), "resumed_by": by})
        _write(store, record, ended, revision)
        return PauseReply(counted=True, message=f"resumed: the canary of {record.release_id} on {place}")

    return despite_others(attempt)


def _found(store: ArtifactStore, place: str) -> tuple[CanaryRecord, PauseRequest | None, str | None]:
    record = _on_trial(store, place)
    name = pause_name(record.release_id, place)
    document = store.read_document(name)
    if document is None:
        return record, None, None
    return record, understood(PauseRequest, document.value, name), document.revision


def _on_trial(store: ArtifactStore, place: str) -> CanaryRecord:
    record = latest_canary(store, place)
    if record is None:
        raise ConfigError(f"nothing is on trial on {place}", hint="see `llm-pipeline status`")
    return record


def _too_late(record: CanaryRecord, known: PauseRequest | None) -> PauseReply | None:
    if record.settled or record.phase is Phase.ROLLING_BACK:
        why = f"the canary of {record.release_id} is {record.phase.value}"
    elif known is not None and known.holds(record.began_at) and known.over(HostTime.now()):
        why = f"nobody resumed the canary of {record.release_id} within {known.deadline_seconds:.0f} s"
    else:
        return None
    return PauseReply(counted=False, message=f"too late, nothing was changed: {why}")


def _unchanged(why: str) -> PauseReply:
    return PauseReply(counted=False, message=f"nothing was changed: {why}")


def _paused(record: CanaryRecord, asked: PauseRequest) -> str:
    share = f"{record.share_percent:g} %"
    until = utc(asked.since + asked.deadline_seconds)
    return (
        f"paused: the canary of {record.release_id} keeps its {share} of the traffic on {record.target} from its next "
        f"look on; it is rolled back at {until} unless `llm-pipeline resume {record.target}` comes before"
    )


def _write(store: ArtifactStore, record: CanaryRecord, request: PauseRequest, revision: str | None) -> None:
    store.write_document(pause_name(record.release_id, record.target), request.model_dump(), revision)
