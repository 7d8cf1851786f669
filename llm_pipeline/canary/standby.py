"""The standby: the slot that answers if production's server does not.

That is the version that served before it, for as long as that one is kept warm; and from the moment that a candidate
has taken its slot and answers, the candidate: it has passed every gate before the canary. What was taken back or
judged NO_GO stands by for nobody. So a request meets no server only where both are dead, or where the only one that
lives was taken back.
"""

from __future__ import annotations

from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.moving import wait_converged
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import CanaryRecord
from llm_pipeline.canary.router import RouterUnavailable, SlotName, TrafficRouter
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.places import holder_of
from llm_pipeline.store.pointers import read_pointers

log = get_logger(__name__)


def standby_after(store: ArtifactStore, record: CanaryRecord) -> SlotName | None:
    """The slot that stands by once a promoted release has all traffic; None where another model served before it."""
    holder = holder_of(store, record.target)
    previous = read_pointers(store, holder.model_id, record.target)[0].previous if holder is not None else None
    if previous is None or (previous.slot, previous.repository) != (record.stable, record.stable_repository):
        return None
    return record.stable


def is_standby(record: CanaryRecord, router: TrafficRouter | None) -> bool:
    """Whether a canary's candidate stands by for production now; without a router that can be read it does not."""
    if router is None or record.stood_in is None or record.settled:
        return False
    try:
        return router.read()[0].standby == record.candidate
    except RouterUnavailable:
        return False


def stand_down(router: TrafficRouter, patience: Patience, *, owner: str, epoch: int) -> None:
    """Remove the standby from the routes: the server in that slot is about to end.

    Raises:
        RouterUnavailable: The routes cannot be written, or the router does not act on them.
        Fenced: A newer owner moved the traffic.
    """
    state, revision = router.read()
    if state.standby is None:
        return
    want = state.model_copy(update={"standby": None, "owner": owner, "epoch": epoch})
    if not wait_converged(router, router.write(want, revision), patience.confirm):
        raise RouterUnavailable(f"it does not act on routes without the standby in {state.standby}")
    log.info("production has no standby now", slot=state.standby)
