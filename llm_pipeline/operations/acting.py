"""The fence of every act on a place: one at a time under its lease, with a token above all that were seen there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from llm_pipeline.canary.moving import epoch_above
from llm_pipeline.canary.record import LEASE_SECONDS, lease_name
from llm_pipeline.canary.router import RouterUnavailable, TrafficRouter
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease, LeaseHeld


class PlaceBusy(LeaseHeld):
    """Somebody else acts on the place now."""


@contextmanager
def acting(store: ArtifactStore, place: str) -> Iterator[Lease]:
    """Hold the lease of a place's canary, like whoever releases or rolls back there.

    Raises:
        PlaceBusy: Somebody else holds it; a rollback does not wait and takes it over instead.
    """
    try:
        with Lease(store, lease_name(place), seconds=LEASE_SECONDS) as lease:
            yield lease
    except PlaceBusy:
        raise
    except LeaseHeld as error:
        hint = "wait until it is done; a server that ended meanwhile is started by `llm-pipeline guard`"
        raise PlaceBusy(f"somebody is moving the traffic of {place} now: {error.message}", hint=hint) from error


def token_of(lease: Lease, router: TrafficRouter | None, slots: SlotControl) -> FencingToken:
    """A token for the holder of a place's lease, above what its router and its slots have seen."""
    epoch = 0
    if router is not None:
        with suppress(RouterUnavailable):
            epoch = router.read()[0].epoch
    return FencingToken(epoch_above(lease.epoch, epoch, slots.newest().epoch), lease.epoch)
