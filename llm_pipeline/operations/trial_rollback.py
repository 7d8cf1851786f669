"""The end of a run's canary: rolled back unless it was promoted, whoever left it and wherever it stands.

This is the teardown of a release. A person's word, which also leaves production, is `rollback`.
"""

from __future__ import annotations

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.moving import NoWayBack, Site
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import LEASE_SECONDS, CanaryJournal, CanaryRecord, Phase, lease_name, take_over
from llm_pipeline.canary.rollback import end_canary, move_unrecorded
from llm_pipeline.canary.router import TrafficRouter
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.canary.watchdog import is_guarded
from llm_pipeline.operations.acting import despite_others
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease

log = get_logger(__name__)

_OTHERS_SECONDS = 15.0


def ensure_rolled_back(
    store: ArtifactStore,
    release_id: str,
    target: str,
    *,
    router: TrafficRouter | None,
    slots: SlotControl,
    patience: Patience,
    leave_paused: bool = False,
) -> CanaryRecord | None:
    """End a release's canary with all traffic on stable, unless it was promoted or rolled back already.

    Whoever drives the canary at this moment is fenced off first: its lease, its record and its router writes.
    When even the store cannot be read, traffic moves by what the router itself knows, and then the error is raised.

    Args:
        store: Where the canary's record is.
        release_id: The release on trial.
        target: The target's name.
        router: The target's router, running or not; None where none ever ran.
        slots: The target's slots.
        patience: How long each part is tried.
        leave_paused: A canary that waits for a person is left to wait, if a guard is there to watch its deadline.

    Returns:
        The canary's record; None when it never began.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
        Transient: The store could not record it; the same call is safe again.
    """
    journal, site = CanaryJournal(store, release_id, target), Site(router, slots, patience)
    record: CanaryRecord | None = None

    def attempt() -> CanaryRecord | None:
        nonlocal record
        record = journal.load()
        if record is None or (record.settled and record.traffic_confirmed is not False):
            log.info("nothing to roll back", phase=record.phase.value if record else "never began")
            return record
        if leave_paused and record.phase is Phase.PAUSED:
            if is_guarded(store, target):
                log.info(
                    "the canary is waiting for a person; the guard watches its deadline", percent=record.share_percent
                )
                return record
            log.warning(
                "the canary is waiting for a person, but no guard watches its deadline: unpause the guard's DAG"
            )
        take_over(store, target)
        with Lease(store, lease_name(target), seconds=LEASE_SECONDS) as lease:
            return end_canary(journal, site, lease=lease, by="rollback")

    def let_others_finish() -> None:
        wait_until(lambda: not _is_rolling_back(journal), patience.confirm + _OTHERS_SECONDS)

    try:
        return despite_others(attempt, let_others_finish)
    except NoWayBack:
        raise
    except Transient:
        move_unrecorded(site, release_id, record)
        raise


def _is_rolling_back(journal: CanaryJournal) -> bool:
    record = journal.load()
    return record is not None and record.phase is Phase.ROLLING_BACK
