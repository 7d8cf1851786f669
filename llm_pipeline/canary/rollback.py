"""The rollback of a canary: make stable answer, send it all traffic, then drain and stop the candidate.

It needs no metric, approval, lease or admin interface: the routes are replaced by one rename, with retries for a while.
If the router does not confirm them, the result says so, and a second call tries again. Requests stay with the candidate
only if no other server would answer them.
"""

from __future__ import annotations

from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.moving import (
    NoWayBack,
    Site,
    epoch_above,
    have_answering,
    is_standby,
    retire,
    traffic_to,
    wait_usable,
)
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase
from llm_pipeline.canary.router import RouterUnavailable, RouteState, TrafficRouter, all_to, other_slot
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import read_place

log = get_logger(__name__)

_JUDGED = frozenset({Phase.PAUSED, Phase.ROLLING_BACK, Phase.ROLLED_BACK})


def end_canary(
    journal: CanaryJournal,
    site: Site,
    *,
    lease: Lease,
    by: str,
    reason: Judgement | None = None,
    even_promoted: bool = False,
) -> CanaryRecord | None:
    """Roll an unfinished canary back, for the holder of the target's lease; returns its record.

    Args:
        journal: The canary's.
        site: The target's.
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
    epoch = epoch_above(lease.epoch, record.epoch, router_epoch(site.router), site.slots.newest().epoch)
    lease.confirm()
    if record.phase not in _JUDGED:
        taken_back = reason or findings.taken_back(record.phase.value, record.step_percent)
        record = record.model_copy(update={"judgement": taken_back})
    elif reason is not None:
        record = record.model_copy(update={"judgement": reason})
    record = record.model_copy(update={"pause": None})
    record = record.with_event(EventKind.ROLLING_BACK, _words(record), by=by)
    if not record.candidate_started:  # it changed neither slots nor traffic: what is there is not ours
        record = record.with_event(EventKind.ROLLED_BACK, "it had moved no traffic", by=by, percent=0.0)
        return journal.save(record.model_copy(update={"phase": Phase.ROLLED_BACK, "epoch": epoch}))
    record = journal.save(record.model_copy(update={"phase": Phase.ROLLING_BACK, "epoch": epoch}))
    want = all_to(record.stable or record.candidate, owner=f"rollback of {record.release_id}", epoch=epoch)
    record = give_back(record, want, site, token=FencingToken(epoch, lease.epoch), by=by)
    return journal.save(record.model_copy(update={"phase": Phase.ROLLED_BACK}))


def _is_over(store: ArtifactStore, record: CanaryRecord, *, even_promoted: bool) -> bool:
    """Whether nothing is left to roll back, checked by the holder of the lease.

    The caller may have been frozen since its last check. If a later release has ended this canary meanwhile, the
    traffic belongs to that release.
    """
    if read_place(store, record.target).on_trial not in ("", record.release_id):
        return True
    if record.phase is Phase.PROMOTED:
        return not even_promoted
    return record.phase is Phase.ROLLED_BACK and record.traffic_confirmed is not False


def give_back(record: CanaryRecord, want: RouteState, site: Site, *, token: FencingToken, by: str) -> CanaryRecord:
    """Have stable answer, send it all traffic, drain and stop the candidate; returns the record, not yet saved.

    Args:
        record: Of the canary; without a stable there is nothing to go back to, and the candidate is stopped.
        want: All traffic on stable.
        site: The target's.
        token: Shown to the slots.
        by: Who does it.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
        NoWayBack: Stable does not answer and cannot be started. Traffic stays on the candidate if that one answers.
        Fenced: Somebody else took the target over.
    """
    confirmed = True
    if record.stable is not None and site.router is not None:
        confirmed = _to_stable(record, want, site, site.router, token)
        record = record.model_copy(update={"intended": want, "applied": want if confirmed else None})
    record = record.marked("traffic on stable", share=0.0)
    words = (
        "all traffic is on stable" if confirmed else "all traffic was sent to stable, but the router did not confirm it"
    )
    limit = site.patience.draining(record.rules.drain_seconds)
    retired = retire(site, record.candidate, record.repository, token=token, limit=limit)
    words = "; ".join(filter(None, (words, retired.words(limit))))
    record = record.with_event(EventKind.ROLLED_BACK, words, by=by, percent=0.0)
    return record.model_copy(update={"traffic_confirmed": confirmed})


def _to_stable(record: CanaryRecord, want: RouteState, site: Site, router: TrafficRouter, token: FencingToken) -> bool:
    """Returns whether the router confirmed it."""
    slots, patience, stable = site.slots, site.patience, other_slot(record.candidate)
    if is_standby(record, router):  # a rolled-back version must not stand by; users of stable are not moved
        traffic_to(router, want, patience)
    try:
        if have_answering(slots, stable, record.stable_repository, token, seconds=patience.prove):
            wait_usable(router, stable, patience.usable)
    except NoWayBack:
        if not slots.answers(record.candidate):  # this loses nothing, and stable gets the traffic once it runs
            traffic_to(router, want, patience)
        raise
    confirmed = traffic_to(router, want, patience)
    log.info("traffic is on stable", slot=stable, confirmed=confirmed)
    return confirmed


def _words(record: CanaryRecord) -> str:
    return record.judgement.summary if record.judgement else "rolled back on request"


def router_epoch(router: TrafficRouter | None) -> int:
    """The epoch that the router was written with last; 0 where that cannot be read."""
    try:
        return router.read()[0].epoch if router is not None else 0
    except RouterUnavailable:
        return 0
