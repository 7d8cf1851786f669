"""Who answers where production does not: the version that served before it, for as long as that one is kept warm.

Only a version that served these users stands by. A candidate that was proven by nobody gets no user's request before
its first step, and one that was taken back gets none at all.
"""

from __future__ import annotations

from llm_pipeline.canary.moving import Patience, wait_converged
from llm_pipeline.canary.record import CanaryRecord
from llm_pipeline.canary.router import RouterUnavailable, SlotName, TrafficRouter
from llm_pipeline.logging import get_logger
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


def stand_down(router: TrafficRouter, patience: Patience, *, owner: str, epoch: int) -> None:
    """Have nobody stand by: what serves in that slot is about to end.

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
    log.info("nobody stands by for production now", slot=state.standby)
