"""The end of a promotion: once the pointers have moved, the share that stayed on stable goes to the new production.

What served before stands by from then on, for as long as it is kept warm.
"""

from __future__ import annotations

from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.epochs import epoch_above
from llm_pipeline.canary.moving import Patience, traffic_to
from llm_pipeline.canary.record import CanaryJournal, Phase, lease_name
from llm_pipeline.canary.router import RouterUnavailable, TrafficRouter, all_to
from llm_pipeline.canary.standby import standby_after
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease

log = get_logger(__name__)

_LEASE_SECONDS = 10.0


def give_all_traffic(
    store: ArtifactStore, target: str, release_id: str, router: TrafficRouter, patience: Patience
) -> bool:
    """Send production everything, and leave nothing on trial; returns whether anything had to be moved.

    Idempotent: traffic that is not the promoted canary's any more is left as it is.

    Raises:
        LeaseHeld: Somebody else moves the target's traffic now.
        RouterUnavailable: The routes cannot be written, or the router does not act on them.
    """
    with Lease(store, lease_name(target), seconds=_LEASE_SECONDS) as lease:
        journal = CanaryJournal(store, release_id, target)
        record = journal.load()
        state, _ = router.read()
        if record is None or record.phase is not Phase.PROMOTED or state.candidate != record.candidate:
            return False
        epoch = epoch_above(lease.epoch, record.epoch, state.epoch)
        standby = standby_after(store, record)
        settled = all_to(record.candidate, owner=f"settled {release_id}", epoch=epoch, standby=standby)
        want = router.nearest(settled)
        record = journal.save(record.model_copy(update={"intended": want, "epoch": epoch}))
        if not traffic_to(router, want, patience):
            raise RouterUnavailable("it does not act on the routes of a settled release", where=target)
        journal.save(record.marked("all traffic", share=1.0).model_copy(update={"applied": want}))
    log.info("all traffic is on production", release=release_id, slot=record.candidate)
    return True
