"""Who took a release back while its own controller drove the canary: a fact about people, not about epochs."""

from __future__ import annotations

from datetime import UTC, datetime

from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary.events import CanaryEvent, EventKind
from llm_pipeline.canary.moving import wait
from llm_pipeline.canary.record import CanaryRecord, Phase, read_record
from llm_pipeline.store.artifact_store import ArtifactStore

RECORDED_WITHIN_SECONDS = 10.0
"""Whoever takes a canary back fences its controller first and writes down what they do a moment later."""


def taken_back_judgement(
    store: ArtifactStore, release_id: str, target: str, *, wait_seconds: float = RECORDED_WITHIN_SECONDS
) -> Judgement | None:
    """The judgement of a canary that somebody else ended, with who and when; None if nobody did.

    Args:
        store: Where the canary's record is.
        release_id: The release that was on trial.
        target: The target's name.
        wait_seconds: For their record of it.
    """

    def found() -> CanaryRecord | None:
        record = read_record(store, release_id, target)
        return record if record is not None and _who(record) is not None else None

    wait(lambda: found() is not None, wait_seconds)
    record = found()
    return with_who(record, record.judgement) if record is not None and record.judgement is not None else None


def with_who(record: CanaryRecord | None, judgement: Judgement) -> Judgement:
    """A judgement that says who took the release back, where that was not its own controller."""
    event = _who(record) if record is not None else None
    if event is None:
        return judgement
    at = datetime.fromtimestamp(event.at, UTC)
    words = f"rolled back by {event.by} at {at:%Y-%m-%d %H:%M:%S} UTC"
    return judgement.model_copy(update={"summary": f"{judgement.summary}; {words}"})


def _who(record: CanaryRecord) -> CanaryEvent | None:
    """The event by which somebody else began the last rollback."""
    if record.phase not in (Phase.ROLLING_BACK, Phase.ROLLED_BACK):
        return None
    began = [event for event in record.events if event.kind is EventKind.ROLLING_BACK]
    mine = f"{record.release_id}@"  # so begins the name of its controllers
    return began[-1] if began and not began[-1].by.startswith(mine) else None
