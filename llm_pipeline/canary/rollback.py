"""The way back: traffic to stable first, then the candidate drained and stopped. It has no preconditions.

No metric, approval, lease or answering admin interface is needed: the routes are written by one rename, whatever
they held, and are retried for a while; what could not be confirmed is said, and a second call tries again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from llm_pipeline.canary import findings
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.guard_sign import is_guarded
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase, current_canary, lease_name, take_over
from llm_pipeline.canary.router import (
    RouterRejected,
    RouterUnavailable,
    RouteState,
    SlotName,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.config.router_place import RouterPlace
from llm_pipeline.errors import Fenced, Transient
from llm_pipeline.logging import get_logger
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost
from llm_pipeline.verdict import Judgement

log = get_logger(__name__)

LEASE_SECONDS = 10.0
_NOTHING_TO_DO = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK})
_JUDGED = frozenset({Phase.PAUSED, Phase.ROLLING_BACK, Phase.ROLLED_BACK})
_FIRST_PAUSE_SECONDS = 0.1
_LARGEST_PAUSE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_TRIES = 5
LEFT_ALONE = "the candidate's slot serves another repository by now: that server was left alone"
_STEADY_SECONDS = 2.0
"""Longer than the router's health checks are apart."""


@dataclass(frozen=True)
class Patience:
    """How long each part of a rollback is tried, in seconds.

    Attributes:
        write: For writing the routes; then the rollback fails and is retried by its caller.
        confirm: For the router's acknowledgement; then it goes on unconfirmed.
        drain: For requests in flight at the candidate; then they are cut.
        usable: For the router's health checks to accept a fresh candidate; then it is not tried.
        blind_drain: Waited instead when the router does not tell what is in flight.
    """

    write: float = 60.0
    confirm: float = 5.0
    drain: float = 15.0
    usable: float = 15.0
    blind_drain: float = 2.0

    @classmethod
    def with_router(cls, place: RouterPlace) -> Patience:
        """As much as its kind takes; one that never tells what is in flight is given the whole time to drain."""
        blind = cls.blind_drain if place.logs_requests else cls.drain
        return cls(confirm=place.acts_within_seconds, blind_drain=blind)


def ensure_rolled_back(
    store: ArtifactStore,
    release_id: str,
    target: str,
    *,
    router: TrafficRouter | None,
    slots: SlotControl,
    patience: Patience,
    by: str = "rollback",
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
        by: Who asks for it, for the canary's events.
        leave_paused: A canary that waits for a person is left to wait, if a guard is there to watch its deadline.

    Returns:
        The canary's record; None when it never began.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
        Transient: The store could not record it; the same call is safe again.
    """
    journal = CanaryJournal(store, release_id, target)

    def attempt() -> CanaryRecord | None:
        record = journal.load()
        if record is None or (record.phase in _NOTHING_TO_DO and record.traffic_confirmed is not False):
            log.info("nothing to roll back", phase=record.phase.value if record else "never began")
            return record
        if leave_paused and record.phase is Phase.PAUSED:
            if is_guarded(store, target):
                log.info("the canary waits for a person; the guard watches its deadline", percent=record.share_percent)
                return record
            log.warning("the canary waits for a person, but no guard watches its deadline: unpause the guard's DAG")
        take_over(store, target)
        with Lease(store, lease_name(target), seconds=LEASE_SECONDS) as lease:
            return end_canary(journal, router, slots, patience, lease_epoch=lease.epoch, by=by)

    try:
        return _despite_others(attempt, journal, patience)
    except Transient:
        _roll_back_blind(router, release_id, patience)
        raise


def traffic_to(router: TrafficRouter, want: RouteState, patience: Patience) -> bool:
    """Write the routes whatever they held; returns whether the data plane confirmed them.

    Raises:
        RouterUnavailable: The routes could not be written for `patience.write` seconds.
        Fenced: A newer owner moved the traffic meanwhile.
    """
    revision = _write_with_retries(router, want, patience.write)
    confirmed = wait_converged(router, revision, patience.confirm)
    if not confirmed:
        log.warning("the router did not confirm the routes; they are on disk", revision=revision)
    return confirmed


def wait_converged(router: TrafficRouter, revision: str, seconds: float) -> bool:
    """Wait until the data plane acts on a revision; False when it did not, or refused it."""

    def converged() -> bool:
        return router.converged(revision) is True

    try:
        return _wait(converged, seconds)
    except RouterRejected as error:
        log.error("the router refused the routes", reason=str(error))  # noqa: TRY400 - nothing to trace
        return False


def wait_usable(router: TrafficRouter, slot: SlotName, seconds: float) -> bool:
    """Wait until the router accepts the slot and goes on to; a router that cannot tell is taken at its word.

    A server that is started soon after another one stopped at its address is accepted by the checks of before, refused
    by the next ones, and accepted again: so it must be accepted for longer than checks are apart.
    """
    accepted_since: float | None = None

    def steady() -> bool:
        nonlocal accepted_since
        if router.usable(slot) is False:
            accepted_since = None
            return False
        now = time.monotonic()
        accepted_since = now if accepted_since is None else accepted_since
        return now - accepted_since >= _STEADY_SECONDS

    return _wait(steady, seconds)


def retire(
    router: TrafficRouter | None,
    slots: SlotControl,
    slot: SlotName,
    repository: ArtifactRef,
    *,
    token: FencingToken,
    patience: Patience,
) -> bool:
    """Let requests in flight finish, then stop the slot's server of this repository.

    Returns:
        False when the slot serves something else by now, which was left alone.

    Raises:
        Fenced: Somebody else took the slots over meanwhile; nothing was stopped.
    """
    if slots.alive(slot):
        _drain(router, slot, patience)
    stopped = slots.stop(slot, repository, token)
    if not stopped:
        log.warning(LEFT_ALONE, slot=slot, repository=str(repository))
    return stopped


def end_canary(
    journal: CanaryJournal,
    router: TrafficRouter | None,
    slots: SlotControl,
    patience: Patience,
    *,
    lease_epoch: int,
    by: str,
    reason: Judgement | None = None,
) -> CanaryRecord | None:
    """Roll an unfinished canary back, for the holder of the target's lease; returns its record.

    Args:
        journal: The canary's.
        router: The target's router; None where none ever ran.
        slots: The target's slots.
        patience: How long each part is tried.
        lease_epoch: Epoch of the lease that the caller holds.
        by: Who asks for it.
        reason: What the canary's judgement becomes; by default that somebody asked for it, if it was not judged.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
    """
    record = journal.load()
    if record is None or record.phase is Phase.PROMOTED:
        return record
    epoch = max(lease_epoch, record.epoch + 1, _router_epoch(router) + 1, slots.newest().epoch + 1)
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
    confirmed = True
    if record.stable is not None and router is not None:
        want = all_to(record.stable, owner=f"rollback of {record.release_id}", epoch=epoch)
        confirmed = traffic_to(router, want, patience)
        log.info("traffic is on stable", slot=record.stable, confirmed=confirmed)
    record = record.marked("traffic on stable", share=0.0)
    words = "all traffic is on stable" if confirmed else "all traffic was sent to stable, the router did not confirm it"
    record = record.with_event(EventKind.ROLLED_BACK, words, by=by, percent=0.0)
    token = FencingToken(epoch, lease_epoch)
    if not retire(router, slots, record.candidate, record.repository, token=token, patience=patience):
        record = record.with_event(EventKind.ROLLED_BACK, LEFT_ALONE, by=by, percent=0.0)
    return journal.save(record.model_copy(update={"phase": Phase.ROLLED_BACK, "traffic_confirmed": confirmed}))


def end_older_release(
    store: ArtifactStore,
    target: str,
    release_id: str,
    *,
    router: TrafficRouter,
    slots: SlotControl,
    patience: Patience,
    lease_epoch: int,
    by: str,
) -> None:
    """Roll another release's canary on the target back, however its controller ended, before this one's begins."""
    other = current_canary(store, target)
    if other is None or other == release_id:
        return
    journal = CanaryJournal(store, other, target)
    if (record := journal.load()) is None or record.settled:
        return
    log.warning("rolling another release back", release=other, phase=record.phase.value)
    reason = findings.superseded(release_id)
    end_canary(journal, router, slots, patience, lease_epoch=lease_epoch, by=by, reason=reason)


def _words(record: CanaryRecord) -> str:
    return record.judgement.summary if record.judgement else "rolled back on request"


def _despite_others(
    attempt: Callable[[], CanaryRecord | None], journal: CanaryJournal, patience: Patience
) -> CanaryRecord | None:
    """Try again when somebody wrote at the same moment; another rollback under way is let finish first."""

    def nobody_rolls_back() -> bool:
        record = journal.load()
        return record is None or record.phase is not Phase.ROLLING_BACK

    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except (Fenced, Conflict, LeaseHeld, LeaseLost) as error:
            log.warning("somebody else wrote at the same moment, trying again", reason=str(error))
        time.sleep(random.uniform(_POLL_SECONDS, 5 * _POLL_SECONDS))  # noqa: S311 - so that two do not meet again
        _wait(nobody_rolls_back, patience.confirm + patience.drain)
    return attempt()


def _roll_back_blind(router: TrafficRouter | None, release_id: str, patience: Patience) -> None:
    """Without the store: if the router has a slot on trial, send everything to the other one."""
    try:
        state = router.read()[0] if router is not None else None
    except RouterUnavailable:
        return
    if router is not None and state is not None and state.candidate is not None:
        want = all_to(other_slot(state.candidate), owner=f"rollback of {release_id}", epoch=state.epoch + 1)
        try:
            confirmed = traffic_to(router, want, patience)
        except Fenced:  # another rollback, or whoever adopted the canary; the caller raises what led here
            return
        log.warning("the store is unavailable; traffic was moved to stable all the same", confirmed=confirmed)


def _router_epoch(router: TrafficRouter | None) -> int:
    try:
        return router.read()[0].epoch if router is not None else 0
    except RouterUnavailable:
        return 0


def _drain(router: TrafficRouter | None, slot: SlotName, patience: Patience) -> None:
    if router is None or router.active_requests(slot) is None:
        time.sleep(patience.blind_drain)
    elif not _wait(lambda: not router.active_requests(slot), patience.drain):
        log.warning("requests still in flight are cut", slot=slot, seconds=patience.drain)


def _write_with_retries(router: TrafficRouter, want: RouteState, seconds: float) -> str:
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return router.write(want, None)
        except RouterUnavailable as error:
            if time.monotonic() >= deadline:
                raise
            log.warning("cannot write the routes, trying again", reason=str(error))
        time.sleep(pause)
        pause = min(2 * pause, _LARGEST_PAUSE_SECONDS)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
