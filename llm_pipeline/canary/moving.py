"""The parts of every move of traffic: epochs, routes and their confirmation, answering servers, draining, standby.

A canary's rollback (`end_canary`) makes stable answer, sends it all traffic, then drains and stops the candidate. It
needs no metric, approval or admin interface: the routes are replaced by one rename, with retries for a while. If the
router does not confirm them, the result says so, and a second call tries again. Requests stay with the candidate only
if no other server would answer them.

The standby is the slot that answers if production's server does not: the previous version while it is kept warm, or
the candidate, once it answers in that slot, because it has passed every gate before the canary. A version that was
rolled back or judged NO_GO never stands by. So users are without a server only if both are dead, or if the only live
one was rolled back.
"""

from __future__ import annotations

import time
from contextlib import suppress

from llm_pipeline.base.errors import Fenced, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, EventKind, Phase, taken_back
from llm_pipeline.canary.router import (
    Patience,
    RouterRejected,
    RouterUnavailable,
    RouteState,
    SlotName,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.slots import ServedPlace, SlotControl
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import read_place

log = get_logger(__name__)

_PAUSE_SECONDS = 0.5
_POLL_SECONDS = 0.05
_STEADY_SECONDS = 2.0
"""Longer than the interval of the router's health checks."""

_ANSWER_POLL_SECONDS = 0.5
_JUDGED = frozenset({Phase.PAUSED, Phase.ROLLING_BACK, Phase.ROLLED_BACK})
LEFT_ALONE = "the slot now serves another repository: that server was left running"

_LEASES = 2**20
"""An epoch holds the number of its lease modulo this."""


def traffic_to(router: TrafficRouter, want: RouteState, patience: Patience) -> bool:
    """Write the routes unconditionally; returns whether the data plane confirmed them.

    Raises:
        RouterUnavailable: The routes could not be written for `patience.write` seconds.
        Fenced: A newer owner moved the traffic meanwhile.
    """
    deadline = time.monotonic() + patience.write
    while True:
        try:
            revision = router.write(want, None)
            break
        except RouterUnavailable as error:
            if time.monotonic() >= deadline:
                raise
            log.warning("cannot write the routes, trying again", reason=str(error))
            time.sleep(_PAUSE_SECONDS)
    confirmed = wait_converged(router, revision, patience.confirm)
    if not confirmed:
        log.warning("the router did not confirm the routes; they are on disk", revision=revision)
    return confirmed


def wait_converged(router: TrafficRouter, revision: str, seconds: float) -> bool:
    """Wait until the data plane acts on a revision; False when it did not, or refused it."""
    try:
        return wait_until(lambda: router.converged(revision) is True, seconds)
    except RouterRejected as error:
        log.error("the router refused the routes", reason=str(error))  # noqa: TRY400 - nothing to trace
        return False


def wait_usable(router: TrafficRouter, slot: SlotName, seconds: float) -> bool:
    """Wait until the router accepts the slot for a while; a router that cannot tell counts as accepting it.

    A server that starts soon after another one stopped at its address still has that one's good health checks, fails
    the next ones, and then passes again: so it must stay accepted for longer than the interval of the checks.
    """
    refused_at = time.monotonic()

    def steady() -> bool:
        nonlocal refused_at
        if router.usable(slot) is False:
            refused_at = time.monotonic()
            return False
        return time.monotonic() - refused_at >= _STEADY_SECONDS

    return wait_until(steady, seconds)


def retire(
    place: ServedPlace, slot: SlotName, repository: ArtifactRef, *, token: FencingToken, drain_seconds: float
) -> str:
    """Let requests in flight at a slot end, then stop its server of this repository.

    Args:
        place: The place's.
        slot: Where the server is.
        repository: What it serves; a slot that serves something else by now is left alone.
        token: Shown to the slots.
        drain_seconds: Long generations take minutes: what still runs after so long is cut.

    Returns:
        What a person must know about it; empty if all went well.

    Raises:
        Fenced: Somebody else took the slots over meanwhile; nothing was stopped.
    """
    words = ""
    blind = drain_seconds if place.patience.blind_drain is None else place.patience.blind_drain
    log.info("waiting for requests in flight", slot=slot, limit_seconds=drain_seconds)
    began = time.monotonic()
    while place.slots.alive(slot):
        left = place.router.active_requests(slot) if place.router is not None else None
        left = place.slots.in_flight(slot) if left is None else left  # the router's count, or else the server's
        if left == 0 or time.monotonic() - began >= (blind if left is None else drain_seconds):
            words = f"{left} requests still in flight were cut after {drain_seconds:g} s" if left else ""
            break
        time.sleep(_POLL_SECONDS)
    if not place.slots.stop(slot, repository, token):
        words = LEFT_ALONE
    if words:
        log.warning(words, slot=slot, repository=str(repository))
    return words


class NoWayBack(Transient):
    """The server to roll back to does not answer and cannot be started; nothing was stopped."""


def have_answering(
    slots: SlotControl, slot: SlotName, repository: ArtifactRef | None, token: FencingToken, *, seconds: float
) -> bool:
    """Have a slot's server answer a generation: one that has ended is started, one that hangs is restarted.

    A server that is running but gives no answer is left alone if the other slot gives none either: the host may be
    busy, and ending its production would make that worse.

    Args:
        slots: The target's slots.
        slot: Where traffic is to go.
        repository: What must serve there; None when nobody knows: then it can be asked but not started.
        token: Shown to the slots.
        seconds: How long an answer is waited for.

    Returns:
        Whether it was started now.

    Raises:
        NoWayBack: It does not answer, and could not be started.
        Fenced: Somebody else took the slots over.
    """
    running = slots.alive(slot)
    if running and _answers(slots, slot, seconds):
        return False
    if running and not slots.answers(other_slot(slot)):
        log.warning("neither server answers; the one to roll back to is left running", slot=slot)
        return False
    state = "is running but gives no answer" if running else "has ended"
    log.warning(f"the server in {slot} {state}: starting it")
    if repository is None:
        raise NoWayBack(f"the server in {slot} {state}, and what it served is unknown", hint="start it by hand")
    if running:
        slots.stop(slot, repository, token)
    where, hint = str(repository), "see the server's log; the same call is safe again"
    try:
        slots.ensure(slot, repository, token)
    except Fenced:
        raise
    except PipelineError as error:
        message = f"the server in {slot} does not start: {error.message}"
        raise NoWayBack(message, where=where, hint=error.hint or hint) from error
    if not _answers(slots, slot, seconds):
        raise NoWayBack(f"the server in {slot} was started and gives no answer", where=where, hint=hint)
    return True


def _answers(slots: SlotControl, slot: SlotName, seconds: float) -> bool:
    def known() -> bool:
        return not slots.alive(slot) or slots.answers(slot)

    return wait_until(known, seconds, every=min(_ANSWER_POLL_SECONDS, seconds / 4)) and slots.alive(slot)


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
        raise RouterUnavailable(f"it did not remove the standby in {state.standby} from its routes")
    log.info("production has no standby now", slot=state.standby)


def epoch_above(lease: int, *seen: int) -> int:
    """An epoch for the holder of a lease, above all epochs found at the router, in the record and at the slots.

    Two controllers that look at the same moment find the same epochs. So an epoch also holds the number of its
    holder's lease, which the store gives out once: no two controllers share an epoch. A holder reads the epochs first
    and confirms its lease afterwards, so the next holder reads epochs at least as high, and goes above them.

    Args:
        lease: The lease's own epoch; zero without a lease, while the store accepts no writes.
        seen: Epochs that were found.
    """
    return (max(seen, default=0) // _LEASES + 1) * _LEASES + lease % _LEASES


def token_of(lease: Lease, place: ServedPlace, record: CanaryRecord | None = None) -> FencingToken:
    """A token for the holder of a place's lease, above what its router, its slots and a canary's record have seen."""
    seen = [place.slots.newest().epoch, record.epoch if record is not None else 0]
    if place.router is not None:
        with suppress(RouterUnavailable):
            seen.append(place.router.read()[0].epoch)
    return FencingToken(epoch_above(lease.epoch, *seen), lease.epoch)


def end_canary(
    journal: CanaryJournal,
    place: ServedPlace,
    *,
    lease: Lease,
    by: str,
    reason: Judgement | None = None,
    even_promoted: bool = False,
) -> CanaryRecord | None:
    """Roll an unfinished canary back, for the holder of the target's lease; returns its record.

    Args:
        journal: The canary's.
        place: The target's.
        lease: The target's, which the caller holds.
        by: Who asks for it.
        reason: What the canary's judgement becomes; by default that somebody asked for it, if it was not judged.
        even_promoted: One that ended in a promotion is rolled back, too; nobody has settled it.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
        NoWayBack: Stable does not answer and cannot be started.
    """
    record = journal.load()
    if record is None or read_place(journal.store, record.target).on_trial not in ("", record.release_id):
        return record  # a later release has ended it, while its holder was frozen: the traffic belongs to that release
    if record.phase is Phase.PROMOTED and not even_promoted:
        return record
    if record.phase is Phase.ROLLED_BACK and record.traffic_confirmed is not False:
        return record
    token = token_of(lease, place, record)
    lease.confirm()
    judgement = reason or (record.judgement if record.phase in _JUDGED else None)
    judgement = judgement or taken_back(record.phase.value, record.step_percent, by)
    record = record.model_copy(update={"judgement": judgement, "pause": None})
    record = record.with_event(EventKind.ROLLING_BACK, judgement.summary, by=by)
    if not record.candidate_started:  # it changed neither slots nor traffic: what is there is not ours
        record = record.with_event(EventKind.ROLLED_BACK, "it had moved no traffic", by=by, percent=0.0)
        return journal.save(record.model_copy(update={"phase": Phase.ROLLED_BACK, "epoch": token.epoch}))
    record = journal.save(record.model_copy(update={"phase": Phase.ROLLING_BACK, "epoch": token.epoch}))
    want = all_to(record.stable or record.candidate, owner=f"rollback of {record.release_id}", epoch=token.epoch)
    record = give_back(record, want, place, token=token, by=by)
    return journal.save(record.model_copy(update={"phase": Phase.ROLLED_BACK}))


def give_back(
    record: CanaryRecord, want: RouteState, place: ServedPlace, *, token: FencingToken, by: str
) -> CanaryRecord:
    """Have stable answer, send it all traffic, drain and stop the candidate; returns the record, not yet saved.

    Args:
        record: Of the canary; without a stable there is nothing to go back to, and the candidate is stopped.
        want: All traffic on stable.
        place: The target's.
        token: Shown to the slots.
        by: Who does it.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
        NoWayBack: Stable does not answer and cannot be started. Traffic stays on the candidate if that one answers.
        Fenced: Somebody else took the target over.
    """
    router, slots, patience, stable = place.router, place.slots, place.patience, other_slot(record.candidate)
    words, confirmed = "all traffic is on stable", True
    if record.stable is not None and router is not None:
        standby = None
        with suppress(RouterUnavailable):
            standby = router.read()[0].standby
        if standby == record.candidate and slots.served(record.candidate) == record.repository.digest:
            traffic_to(router, want, patience)  # what is rolled back must not stand by; stable's users are not moved
        try:
            if have_answering(slots, stable, record.stable_repository, token, seconds=patience.prove):
                wait_usable(router, stable, patience.usable)
        except NoWayBack:
            if not slots.answers(record.candidate):  # this loses nothing, and stable gets the traffic once it runs
                traffic_to(router, want, patience)
            raise
        confirmed = traffic_to(router, want, patience)
        record = record.model_copy(update={"intended": want, "applied": want if confirmed else None})
    if not confirmed:
        words = "all traffic was sent to stable, but the router did not confirm it"
    seconds = record.policy.drain_seconds
    retired = retire(place, record.candidate, record.repository, token=token, drain_seconds=seconds)
    words = "; ".join(filter(None, (words, retired)))
    record = record.with_event(EventKind.ROLLED_BACK, words, by=by, percent=0.0)
    return record.model_copy(update={"traffic_confirmed": confirmed})
