"""The version before production stays warm for its rollback window; then its server is stopped."""

from __future__ import annotations

from datetime import timedelta

from llm_pipeline.canary.draining import retire
from llm_pipeline.canary.moving import Patience
from llm_pipeline.canary.record import GuardRules, current_canary, lease_name, read_record
from llm_pipeline.canary.rollback import LEASE_SECONDS
from llm_pipeline.canary.router import TrafficRouter
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.logging import get_logger
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease, LeaseHeld
from llm_pipeline.store.places import serving_at
from llm_pipeline.store.pointers import Pointer, read_pointers

log = get_logger(__name__)


def retire_previous(
    store: ArtifactStore,
    model_id: str,
    target: str,
    *,
    router: TrafficRouter | None,
    slots: SlotControl,
    patience: Patience,
    now: float,
) -> Pointer | None:
    """Stop the server of the version before, if its rollback window is over and nothing else uses its slot.

    Args:
        store: Where the pointers are.
        model_id: `organisation/name` on the hub.
        target: The target's name.
        router: The target's router; without one nobody can tell that the slot has no traffic, and it is left alone.
        slots: The target's slots.
        patience: How long requests in flight are waited for.
        now: Seconds since 1970.

    Returns:
        What was stopped; None when nothing was.
    """
    pointers, _ = read_pointers(store, model_id, target)
    production, previous = pointers.production or _successor(store, target), pointers.previous
    if production is None or previous is None or previous.slot == production.slot or not slots.alive(previous.slot):
        return None
    if now < warm_until(store, production, target) or router is None:
        return None
    try:
        with Lease(store, lease_name(target), seconds=LEASE_SECONDS) as lease:
            on_trial = current_canary(store, target)
            record = read_record(store, on_trial, target) if on_trial else None
            idle = router.read()[0].weights.get(previous.slot, 0) == 0
            if not idle or (record is not None and not record.settled):
                return None
            log.info("the rollback window is over", release=previous.release_id, slot=previous.slot)
            token = FencingToken(max(lease.epoch, slots.newest().epoch + 1), lease.epoch)
            limit = patience.draining((record.rules if record else GuardRules()).drain_seconds)
            retired = retire(router, slots, previous.slot, previous.repository, token=token, limit=limit)
            if not retired.stopped:
                return None
    except LeaseHeld:
        return None
    return previous


def _successor(store: ArtifactStore, target: str) -> Pointer | None:
    """What serves where the model was before it handed the place over."""
    serving = serving_at(store, target)
    return serving.pointer if serving else None


def warm_until(store: ArtifactStore, production: Pointer, target: str) -> float:
    """When the version before production need not stay warm any more, in seconds since 1970."""
    record = read_record(store, production.release_id, target)
    rules = record.rules if record else GuardRules()
    return (production.promoted_at + timedelta(hours=rules.rollback_window_hours)).timestamp()
