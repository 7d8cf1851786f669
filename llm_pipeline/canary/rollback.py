"""The way back of a canary: stable made to answer, then all traffic to it, then the candidate drained and stopped.

No metric, approval, lease or answering admin interface is needed: the routes are written by one rename, whatever
they held, and are retried for a while; what could not be confirmed is said, and a second call tries again. Only where
no server would answer them, requests stay with the candidate.
"""

from __future__ import annotations

from llm_pipeline.base.errors import Fenced, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.moving import (
    NoWayBack,
    epoch_above,
    have_answering,
    is_standby,
    retire,
    stand_down,
    traffic_to,
    wait_usable,
)
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase, current_canary
from llm_pipeline.canary.router import (
    RouterUnavailable,
    RouteState,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease

log = get_logger(__name__)

_NOTHING_TO_DO = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK})
_JUDGED = frozenset({Phase.PAUSED, Phase.ROLLING_BACK, Phase.ROLLED_BACK})
_POLL_SECONDS = 0.05
_TRIES = 5
UNRECORDED = "unrecorded rollback of "
"""So begins the name of the router's owner where the store could not be told that traffic was moved to stable."""

LEFT_UNRECORDED = "unrecorded way back from "
"""So begins it where production was left, and the store could not be told."""

_OTHERS_SECONDS = 15.0


def end_canary(
    journal: CanaryJournal,
    router: TrafficRouter | None,
    slots: SlotControl,
    patience: Patience,
    *,
    lease: Lease,
    by: str,
    reason: Judgement | None = None,
    even_promoted: bool = False,
) -> CanaryRecord | None:
    """Roll an unfinished canary back, for the holder of the target's lease; returns its record.

    Args:
        journal: The canary's.
        router: The target's router; None where none ever ran.
        slots: The target's slots.
        patience: How long each part is tried.
        lease: The target's, which the caller holds.
        by: Who asks for it.
        reason: What the canary's judgement becomes; by default that somebody asked for it, if it was not judged.
        even_promoted: One that ended in a promotion is rolled back, too; nobody has settled it.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
        NoWayBack: Stable does not answer and cannot be started.
    """
    record = journal.load()
    if record is None or _is_over(journal.store, record, even_promoted=even_promoted):
        return record
    epoch = epoch_above(lease.epoch, record.epoch, _router_epoch(router), slots.newest().epoch)
    lease.confirm()
    if record.phase not in _JUDGED:
        taken_back = reason or findings.taken_back(record.phase.value, record.step_percent)
        record = record.model_copy(update={"judgement": taken_back})
    elif reason is not None:
        record = record.model_copy(update={"judgement": reason})
    record = record.model_copy(update={"pause": None})
    record = record.with_event(EventKind.ROLLING_BACK, _words(record), by=by)
    if not record.candidate_started:  # it touched neither slots nor traffic, and what is there is not ours
        record = record.with_event(EventKind.ROLLED_BACK, "it had moved no traffic", by=by, percent=0.0)
        return journal.save(record.model_copy(update={"phase": Phase.ROLLED_BACK, "epoch": epoch}))
    record = journal.save(record.model_copy(update={"phase": Phase.ROLLING_BACK, "epoch": epoch}))
    want = all_to(record.stable or record.candidate, owner=f"rollback of {record.release_id}", epoch=epoch)
    record = give_back(record, want, router, slots, patience, token=FencingToken(epoch, lease.epoch), by=by)
    return journal.save(record.model_copy(update={"phase": Phase.ROLLED_BACK}))


def _is_over(store: ArtifactStore, record: CanaryRecord, *, even_promoted: bool) -> bool:
    """Whether there is nothing left to be given back, looked at by the holder of the lease.

    Whoever asks may have been frozen since it looked last. A release that came after has ended this one's canary, and
    the traffic is that release's.
    """
    if current_canary(store, record.target) not in (None, record.release_id):
        return True
    if record.phase is Phase.PROMOTED:
        return not even_promoted
    return record.phase is Phase.ROLLED_BACK and record.traffic_confirmed is not False


def give_back(
    record: CanaryRecord,
    want: RouteState,
    router: TrafficRouter | None,
    slots: SlotControl,
    patience: Patience,
    *,
    token: FencingToken,
    by: str,
) -> CanaryRecord:
    """Have stable answer, send it all traffic, drain and stop the candidate; returns the record, not yet saved.

    Args:
        record: Of the canary; without a stable there is nothing to go back to, and the candidate is stopped.
        want: All traffic on stable.
        router: The target's router; None where none ever ran.
        slots: The target's slots.
        patience: How long each part is tried.
        token: Shown to the slots.
        by: Who does it.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
        NoWayBack: Stable does not answer and cannot be started. Traffic stays on the candidate if that one answers.
        Fenced: Somebody else took the target over.
    """
    confirmed = True
    if record.stable is not None and router is not None:
        confirmed = _to_stable(record, want, router, slots, patience, token=token)
        record = record.model_copy(update={"intended": want, "applied": want if confirmed else None})
    record = record.marked("traffic on stable", share=0.0)
    words = "all traffic is on stable" if confirmed else "all traffic was sent to stable, the router did not confirm it"
    limit = patience.draining(record.rules.drain_seconds)
    retired = retire(router, slots, record.candidate, record.repository, token=token, limit=limit)
    words = "; ".join(filter(None, (words, retired.words(limit))))
    record = record.with_event(EventKind.ROLLED_BACK, words, by=by, percent=0.0)
    return record.model_copy(update={"traffic_confirmed": confirmed})


def _to_stable(
    record: CanaryRecord,
    want: RouteState,
    router: TrafficRouter,
    slots: SlotControl,
    patience: Patience,
    *,
    token: FencingToken,
) -> bool:
    """Returns whether the router confirmed it."""
    stable = other_slot(record.candidate)
    if is_standby(record, router):  # what is taken back answers nobody, and users of stable stay where they are
        traffic_to(router, want, patience)
    try:
        if have_answering(slots, stable, record.stable_repository, token, seconds=patience.prove):
            wait_usable(router, stable, patience.usable)
    except NoWayBack:
        if not slots.answers(record.candidate):  # nothing can be lost by it, and stable has its traffic when it comes
            traffic_to(router, want, patience)
        raise
    confirmed = traffic_to(router, want, patience)
    log.info("traffic is on stable", slot=stable, confirmed=confirmed)
    return confirmed


def end_older_release(
    store: ArtifactStore,
    target: str,
    release_id: str,
    *,
    router: TrafficRouter,
    slots: SlotControl,
    patience: Patience,
    lease: Lease,
    by: str,
) -> None:
    """Roll another release's canary on the target back, however its controller ended, before this one's begins."""
    other = current_canary(store, target)
    if other is None or other == release_id:
        return
    journal = CanaryJournal(store, other, target)
    if (record := journal.load()) is None or record.settled:
        return
    log.warning("rolling back another release", release=other, phase=record.phase.value)
    reason = findings.superseded(release_id)
    try:
        end_canary(journal, router, slots, patience, lease=lease, by=by, reason=reason)
    except NoWayBack:
        raise
    except Transient:
        move_unrecorded(router, slots, other, patience, record)
        raise


def _words(record: CanaryRecord) -> str:
    return record.judgement.summary if record.judgement else "rolled back on request"


def move_unrecorded(
    router: TrafficRouter | None,
    slots: SlotControl,
    release_id: str,
    patience: Patience,
    record: CanaryRecord | None = None,
) -> bool:
    """Without the store: if the router has a slot on trial, send everything to the other one. Nothing is stopped.

    A candidate that stands by before its first step does so no more.

    Args:
        router: The target's router; None where none ever ran.
        slots: The target's slots.
        release_id: The release on trial.
        patience: How long each part is tried.
        record: The canary's, if it can be read.

    Returns:
        Whether all traffic was sent to stable.
    """
    try:
        if router is not None and record is not None and is_standby(record, router):
            epoch = epoch_above(0, router.read()[0].epoch)
            stand_down(router, patience, owner=f"{UNRECORDED}{release_id}", epoch=epoch)
            return True
        state = router.read()[0] if router is not None else None
        if router is None or state is None or state.candidate is None:
            return False
        stable = other_slot(state.candidate)
        repository = record.stable_repository if record is not None and record.stable == stable else None
        have_answering(slots, stable, repository, slots.newest(), seconds=patience.prove)
        epoch = epoch_above(0, state.epoch, record.epoch if record else 0)
        confirmed = traffic_to(router, all_to(stable, owner=f"{UNRECORDED}{release_id}", epoch=epoch), patience)
    except (RouterUnavailable, NoWayBack) as error:
        log.warning("traffic stays where it is", reason=str(error))
        return False
    except Fenced:  # another rollback, or whoever adopted the canary; the caller raises what led here
        return False
    log.warning("the store is unavailable; traffic was moved to stable anyway", confirmed=confirmed)
    return True


def _router_epoch(router: TrafficRouter | None) -> int:
    try:
        return router.read()[0].epoch if router is not None else 0
    except RouterUnavailable:
        return 0
