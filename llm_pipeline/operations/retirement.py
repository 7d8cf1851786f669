"""The version before production stays warm for its rollback window and stands by; then its server is stopped."""

from __future__ import annotations

from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.moving import epoch_above, have_answering, retire, stand_down, traffic_to
from llm_pipeline.canary.record import (
    LEASE_SECONDS,
    GuardRules,
    latest_canary,
    lease_name,
)
from llm_pipeline.canary.router import all_to
from llm_pipeline.operations.served_place import ServedPlace
from llm_pipeline.release.trusted_pointers import require_served
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease, LeaseHeld
from llm_pipeline.store.place_state import Pointer, read_place

log = get_logger(__name__)


def retire_previous(place: ServedPlace, now: float) -> Pointer | None:
    """Stop the server of the version before, if its rollback window is over and nothing else uses its slot.

    Args:
        place: Without its router nobody can tell that the slot has no traffic, and it is left alone.
        now: Seconds since 1970.

    Returns:
        What was stopped; None when nothing was.
    """
    store, target, router, slots = place.store, place.target, place.router, place.slots
    known = read_place(store, target)
    production, previous = known.production, known.previous
    if production is None or previous is None or previous.slot == production.slot or not slots.alive(previous.slot):
        return None
    if known.keep_until is None or now < known.keep_until.timestamp() or router is None:
        return None
    try:
        with Lease(store, lease_name(target), seconds=LEASE_SECONDS) as lease:
            record = latest_canary(store, target)
            state = router.read()[0]
            idle = state.weights.get(previous.slot, 0) == 0
            if not idle or (record is not None and not record.settled):
                return None
            log.info("the rollback window is over", release=previous.release_id, slot=previous.slot)
            token = FencingToken(epoch_above(lease.epoch, state.epoch, slots.newest().epoch), lease.epoch)
            stand_down(router, place.patience, owner=f"retirement of {previous.release_id}", epoch=token.epoch)
            limit = place.patience.draining((record.rules if record else GuardRules()).drain_seconds)
            retired = retire(place.site, previous.slot, previous.repository, token=token, limit=limit)
            if not retired.stopped:
                return None
    except LeaseHeld:
        return None
    return previous


def have_standby(place: ServedPlace, now: float) -> Pointer | None:
    """Have the version before production answer and stand by while it is warm: a server that has ended is started.

    Args and errors are those of `retire_previous`.

    Returns:
        What was started; None when nothing was.
    """
    store, target, router, slots = place.store, place.target, place.router, place.slots
    known = read_place(store, target)
    production, previous = known.production, known.way_back_to
    if router is None or production is None or previous is None or previous.slot == production.slot:
        return None
    if known.keep_until is None or now >= known.keep_until.timestamp():
        return None
    owner = f"standby of {production.release_id}"
    backed = router.nearest(all_to(production.slot, owner=owner, epoch=0, standby=previous.slot))

    def missing() -> bool:
        state, ended = router.read()[0], slots.ended(previous.slot)
        alone = backed.same_traffic(state) and (ended or backed.standby != state.standby)
        warm = ended or slots.serves(previous.slot, previous.repository)
        return alone and warm and not _on_trial(store, target)

    if not missing():  # without the lease: what is taken for nothing looks like a controller's sign of life
        return None
    try:
        with Lease(store, lease_name(target), seconds=LEASE_SECONDS) as lease:
            if not missing():
                return None
            epoch = epoch_above(lease.epoch, router.read()[0].epoch, slots.newest().epoch)
            started = slots.ended(previous.slot)
            if started:
                require_served(store, known.model_id, target, previous)
                token = FencingToken(epoch, lease.epoch)
                have_answering(slots, previous.slot, previous.repository, token, seconds=place.patience.prove)
            log.info("the previous version is the standby", release=previous.release_id, slot=previous.slot)
            traffic_to(router, backed.model_copy(update={"epoch": epoch}), place.patience)
    except LeaseHeld:
        return None
    return previous if started else None


def _on_trial(store: ArtifactStore, target: str) -> bool:
    """Whether a canary has not ended there."""
    record = latest_canary(store, target)
    return record is not None and not record.settled
