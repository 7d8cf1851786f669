"""For how long nothing was heard of a canary, by no clock that anybody sets.

The clocks of two hosts differ, and any of them may be set back or forth. So no time that a controller wrote is compared
with the guard's. The guard remembers what it found last (the revisions of the documents that a living controller
changes) and since when it finds the same, by the seconds since its host's boot.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from llm_pipeline.base.detached import boot_id
from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.guard_sign import GuardSign, Sighting, leave_sign, read_sign
from llm_pipeline.canary.record import CanaryRecord, lease_name, record_name
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import LeaseState, lease_of

log = get_logger(__name__)

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class HostTime:
    """The time on the guard's host.

    Attributes:
        boot: Tells one boot of one host from another.
        up_seconds: Seconds since that boot, also while the host slept; nobody can set them.
        wall: Seconds since 1970.
    """

    boot: str
    up_seconds: float
    wall: float

    @classmethod
    def now(cls) -> HostTime:
        """As it is."""
        return cls(boot=boot_id(), up_seconds=time.clock_gettime(time.CLOCK_BOOTTIME), wall=time.time())


def silent_seconds(
    store: ArtifactStore, record: CanaryRecord, approval: str, now: HostTime, *, remember: bool
) -> float:
    """For how long the guard has found a canary as it is; what it finds is remembered with its sign of life.

    Where the store takes no new sign, the times that the controller wrote have to do.

    Args:
        store: Where the record is.
        record: Of the canary.
        approval: The answer that it waits for or got, in any words: a new one is a sign of life.
        now: On this host.
        remember: Leave the guard's sign; without it, the times that the controller wrote have to do, too.
    """
    target = record.target
    known = read_sign(store, target)
    found = f"{record.release_id} {_revisions(store, record)} {approval}"
    before = known.sighting if known is not None else None
    same = before if before is not None and before.found == found else None
    sighting = same or Sighting(found=found, boot=now.boot, since=now.up_seconds, since_wall=now.wall)
    remembered = remember and _leave(store, target, GuardSign(at=now.wall, sighting=sighting))
    if same is None and not remembered:
        return max(0.0, now.wall - record.heard_at)
    if sighting.boot == now.boot:
        return max(0.0, now.up_seconds - sighting.since)
    return max(0.0, now.wall - sighting.since_wall)


def _leave(store: ArtifactStore, target: str, sign: GuardSign) -> bool:
    try:
        leave_sign(store, target, sign)
    except Transient as error:
        log.warning("the guard cannot record that it ran", gpu_target=target, reason=str(error))
        return False
    return True


def is_driven(store: ArtifactStore, target: str, *, seconds: float) -> bool:
    """Whether somebody renews the target's lease, looked at for as long as that takes; no clocks are compared."""
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
    names = (record_name(record.release_id, record.target), lease_name(record.target))
    documents = [store.read_document(name) for name in names]
    return " ".join(document.revision if document is not None else "-" for document in documents)
