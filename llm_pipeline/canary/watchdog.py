"""The watchdog of canaries: the guard's heartbeat, and how long a canary has been without a controller.

The clocks of two hosts differ, and either may be set. So the guard measures a controller's silence by no time that it
wrote. It remembers the revisions of the documents that a living controller changes, and for how long they have not
changed, in seconds since its host's boot.
"""

from __future__ import annotations

import time

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.quantities import duration
from llm_pipeline.canary.record import CanaryRecord, Phase, canary_record_name, lease_name
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import LeaseState, lease_of
from llm_pipeline.store.place_state import Heartbeat, PlaceState, Sighting, StepApproval, edit_place, read_place

log = get_logger(__name__)

_POLL_SECONDS = 0.5

RECENT_SECONDS = 900.0
"""A guard whose last heartbeat is older than this counts as not running."""


def record_heartbeat(store: ArtifactStore, target: str, heartbeat: Heartbeat) -> None:
    """Record that the guard checks a target now."""

    def beaten(state: PlaceState) -> PlaceState:
        return state.model_copy(update={"guard": heartbeat})

    edit_place(store, target, beaten)


def last_heard(store: ArtifactStore, target: str) -> float | None:
    """How many seconds ago a guard checked the target, or its clock is ahead of ours; None if none ever did."""
    heartbeat = read_place(store, target).guard
    return None if heartbeat is None else abs(time.time() - heartbeat.at)


def is_recent(heard_seconds: float | None) -> bool:
    """Whether a guard that was heard so many seconds ago runs."""
    return heard_seconds is not None and heard_seconds <= RECENT_SECONDS


def last_pass(heard_seconds: float | None) -> str:
    """When a guard checked a target, in the words of every view."""
    if heard_seconds is None:
        return "never ran here"
    return f"ran {duration(heard_seconds)} ago{'' if is_recent(heard_seconds) else ': it is not running'}"


def is_guarded(store: ArtifactStore, target: str) -> bool:
    """Whether a guard checked the target lately; a controller leaves its canary to a guard that runs."""
    return is_recent(last_heard(store, target))


def overdue(
    record: CanaryRecord, approval: StepApproval | None, *, silent_seconds: float, now: float
) -> tuple[bool, str]:
    """Whether an unfinished canary without a controller must be rolled back, and why, or why not.

    Args:
        record: The canary.
        approval: The question about its next step, or about its pause.
        silent_seconds: For how long its controller gave no heartbeat.
        now: Seconds since 1970.
    """
    if record.phase is Phase.ROLLING_BACK:
        return True, "its rollback was begun and nobody continues it"
    if approval is not None and approval.answer == "denied" and record.phase in (Phase.PAUSED, Phase.PASSED):
        return True, f"{approval.by} denied step {approval.percent:g} %"
    if record.phase is Phase.PAUSED and record.pause is not None:
        over = record.pause.over(now)
        return over, f"it was paused ({record.pause.reason}) and nobody answered in time" if over else "it is paused"
    if record.phase is Phase.PASSED and approval is not None and _may_wait(approval, now):
        return False, "its next step waits for a person"
    over = silent_seconds > record.policy.unwatched_seconds
    return over, f"no controller heartbeat for {silent_seconds:.0f} s while it was {record.phase}"


def _may_wait(approval: StepApproval, now: float) -> bool:
    """Whether a canary between two steps may wait for the answer; once there is one, for whoever acts on it."""
    return approval.answer == "waiting" and approval.asked_at is not None and not approval.overdue(now)


def silent_seconds(store: ArtifactStore, record: CanaryRecord, approval: str, now: HostTime) -> float:
    """For how long a canary has not changed, as the guard sees it; the guard's heartbeat remembers what it sees.

    Args:
        store: Where the record is.
        record: Of the canary.
        approval: The answer that it waits for or got, in any words: a new one is a heartbeat.
        now: On this host.
    """
    known = read_place(store, record.target).guard
    found = f"{record.release_id} {_revisions(store, record)} {approval}"
    sighting = known.sighting if known is not None else None
    if sighting is None or sighting.found != found:
        sighting = Sighting(found=found, boot=now.boot, since=now.up_seconds, since_wall=now.wall)
    try:
        record_heartbeat(store, record.target, Heartbeat(at=now.wall, sighting=sighting))
    except Transient as error:
        log.warning("the guard cannot record that it ran", gpu_target=record.target, reason=str(error))
    return now.seconds_since(HostTime(sighting.boot, sighting.since, sighting.since_wall))


def is_driven(store: ArtifactStore, target: str, *, seconds: float) -> bool:
    """Whether somebody renews the target's lease, by watching it for long enough; no clocks are compared."""
    document = store.read_document(lease_name(target))
    if document is None or _given_up(lease_of(document, lease_name(target))):
        return False
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(_POLL_SECONDS, seconds / 4))
        again = store.read_document(lease_name(target))
        if again is None or again.revision != document.revision:
            return again is not None and not _given_up(lease_of(again, lease_name(target)))
    return False


def _given_up(lease: LeaseState) -> bool:
    return lease.expires_at == 0.0 or lease.holder_gone


def _revisions(store: ArtifactStore, record: CanaryRecord) -> str:
    names = (canary_record_name(record.release_id, record.target), lease_name(record.target))
    documents = [store.read_document(name) for name in names]
    return " ".join(document.revision if document is not None else "-" for document in documents)
