"""Promotion, and what a place needs while nothing is on trial: by what is written down of it and what is found there.

    for action in decide(state, record, seen, now):     # pure
        ...

Production that has ended is started at once, whoever owns the place. A promoted release gets the traffic that was left
on the version before it. That one stays warm and stands by until its time is over, and is stopped then. Every part can
be done again, so whoever comes next goes on where somebody was killed.

A promotion makes what a canary ended well with production, in the place's document first, under the lease of the place.
Then the share of the traffic that had stayed on stable goes to the new production, and what served before stands by for
as long as it is kept warm. Killed in between, the next one who asks finishes it, or the guard does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from llm_pipeline.base.errors import PipelineError, Terminal, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.moving import epoch_above, have_answering, retire, token_of, traffic_to
from llm_pipeline.canary.record import CanaryRecord, Phase, latest_canary, read_canary_record
from llm_pipeline.canary.router import ALL, Patience, RouterUnavailable, RouteState, SlotName, TrafficRouter, all_to
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.operations.decisions import require_production_approved
from llm_pipeline.operations.served_place import acting
from llm_pipeline.release.trusted_pointers import require_served
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import (
    PlaceState,
    Pointer,
    claim_place,
    edit_place,
    hand_over,
    read_place,
    require_place,
)

log = get_logger(__name__)


@dataclass(frozen=True)
class Seen:
    """What is found at a place.

    Attributes:
        traffic: What its router was told last; None where it cannot be read, or none ever ran.
        stands_by: Whether the router can send requests that production fails to another slot.
        ended: Slots whose servers are gone without having been stopped.
        serving: Slots whose servers run with what is written down for them.
    """

    traffic: RouteState | None
    stands_by: bool = True
    ended: frozenset[SlotName] = frozenset()
    serving: frozenset[SlotName] = frozenset()


@dataclass(frozen=True)
class Start:
    """A server that has ended is started."""

    pointer: Pointer


@dataclass(frozen=True)
class Send:
    """All traffic goes to production, and what fails there to the standby, if any.

    Attributes:
        settles: A promoted release gets what was left on the version before it.
    """

    standby: SlotName | None
    settles: bool


@dataclass(frozen=True)
class Stop:
    """The version before is warm no more."""

    pointer: Pointer


Action = Start | Send | Stop


def decide(state: PlaceState, record: CanaryRecord | None, seen: Seen, now: datetime) -> list[Action]:
    """What is to be done, in this order.

    Args:
        state: What is written down of the place.
        record: Of the latest canary there.
        seen: What is found there.
        now: Compared with the end of the rollback window.
    """
    production, before, traffic = state.production, state.previous, seen.traffic
    if production is None:
        return []
    actions: list[Action] = [Start(production)] if production.slot in seen.ended else []
    rolling_back = state.way_back is not None and not state.way_back.done
    if traffic is None or rolling_back or (record is not None and not record.settled):
        return actions  # whoever drives the canary, or rolls back, moves the traffic
    settles = traffic.candidate == production.slot
    if not settles and (traffic.candidate is not None or traffic.weights.get(production.slot) != ALL):
        return actions  # somebody moved it: a person looks
    kept = before if before is not None and before.slot != production.slot else None
    warm = kept is not None and state.keep_until is not None and now < state.keep_until
    standby: SlotName | None = None
    if kept is not None and warm and state.way_back_to is not None:
        if kept.slot in seen.ended:
            actions.append(Start(kept))
        runs = kept.slot in seen.ended | seen.serving
        standby = kept.slot if runs and seen.stands_by else None
    if settles or traffic.standby != standby:
        actions.append(Send(standby, settles))
    if kept is not None and not warm and kept.slot in seen.serving:
        actions.append(Stop(kept))
    return actions


def keep(place: ServedPlace, now: datetime) -> list[tuple[Action, PipelineError | None]]:
    """Do what a place needs; what fails keeps nothing else from being done.

    Returns:
        Each action, and why it could not be done.

    Without the place's lease (somebody acts there, or the store takes nothing) only production is started: beside
    whoever acts, under their token.

    Raises:
        PipelineError: What is written down cannot be read.
    """
    newest = place.slots.newest()  # before it is read what serves: whoever changes that from here on is newer
    wanted = _wanted(place, now)
    if not wanted:  # a lease that is taken for nothing looks like a controller's sign of life
        return []
    try:
        with acting(place.store, place.target) as lease:
            token = token_of(lease, place)
            done: list[tuple[Action, PipelineError | None]] = []
            for action in _wanted(place, now):
                moved = all(error is None for one, error in done if isinstance(one, Send))
                if moved or not isinstance(action, Stop):  # what may have users is not stopped
                    done.append((action, _attempt(place, action, token)))
            return done
    except Transient as error:
        log.info("nothing but production's server is looked after", reason=str(error))
        production = read_place(place.store, place.target).production
        starts = [action for action in wanted if isinstance(action, Start) and action.pointer == production]
        return [(action, _attempt(place, action, newest)) for action in starts]


def send(
    store: ArtifactStore, target: str, router: TrafficRouter, patience: Patience, action: Send, *, epoch: int
) -> None:
    """Send all traffic to production; for the holder of the place's lease.

    Raises:
        RouterUnavailable: The routes cannot be written, or the router does not act on them.
        Fenced: Somebody else moved the traffic.
    """
    production = read_place(store, target).production
    if production is None:
        return
    owner = f"{'settled' if action.settles else 'standby of'} {production.release_id}"
    want = all_to(production.slot, owner=owner, epoch=epoch, standby=action.standby)
    if not traffic_to(router, router.nearest(want), patience):
        raise RouterUnavailable("it does not act on the routes of production", where=target)
    log.info("all traffic is on production", release=production.release_id, standby=action.standby)


def _wanted(place: ServedPlace, now: datetime) -> list[Action]:
    """Look at what is written down, at the router and at the servers, and decide."""
    state, router, slots = read_place(place.store, place.target), place.router, place.slots
    traffic, stands_by = None, False
    if router is not None:
        stands_by = router.nearest(all_to("blue", owner="", epoch=0, standby="green")).standby is not None
        try:
            traffic = router.read()[0]
        except RouterUnavailable as error:
            log.warning("the router cannot be read", reason=str(error))
    known = [one for one in (state.production, state.previous) if one is not None]
    ended = frozenset(one.slot for one in known if slots.ended(one.slot))
    serving = frozenset(one.slot for one in known if slots.served(one.slot) == one.repository.digest)
    record = latest_canary(place.store, place.target)
    return decide(state, record, Seen(traffic, stands_by, ended, serving), now)


def _attempt(place: ServedPlace, action: Action, token: FencingToken) -> PipelineError | None:
    try:
        match action:
            case Start(pointer):
                require_served(place.store, read_place(place.store, place.target).model_id, place.target, pointer)
                have_answering(place.slots, pointer.slot, pointer.repository, token, seconds=place.patience.prove)
            case Send() if place.router is not None:
                send(place.store, place.target, place.router, place.patience, action, epoch=token.epoch)
            case Stop(pointer):
                record = latest_canary(place.store, place.target)
                seconds = (record.policy if record else CanaryPolicy()).drain_seconds
                retire(place, pointer.slot, pointer.repository, token=token, drain_seconds=seconds)
    except PipelineError as error:
        return error
    return None


def replace_holders(store: ArtifactStore, places: Iterable[str], model_id: str, *, by: str) -> None:
    """Hand places over to a model: its next release that is promoted there replaces what serves.

    Nothing that serves changes before that. Asked twice, it is done once.

    Args:
        store: The deployment's.
        places: Where the release is to serve.
        model_id: `organisation/name` on the hub.
        by: Who asks for it.

    Raises:
        Conflict: Others change a place all the time; the same call is safe again.
    """
    for place in places:
        hand_over(store, place, model_id, by=by)


class NotPromoted(Terminal):
    """The canary of this release did not end in production."""


def promote(
    store: ArtifactStore,
    target: str,
    *,
    model_id: str,
    release_id: str,
    repository: ArtifactRef,
    recipe: str,
    find_router: Callable[[Pointer], TrafficRouter | None],
    patience: Patience,
) -> PlaceState:
    """Make a release whose canary was promoted production; the one before it stays in its slot, warm.

    Idempotent: a release that already is production changes nothing. Nothing else makes a release production, so a
    person's approval is checked here.

    Args:
        store: Where record and pointers are.
        target: The place.
        model_id: `organisation/name` on the hub.
        release_id: The release whose canary was promoted there.
        repository: What it serves.
        recipe: The quantization recipe that was chosen.
        find_router: Finds the place's router once it is production, or starts it; None where none ever ran.
        patience: How long the traffic's move is tried.

    Returns:
        The place afterwards.

    Raises:
        NotApproved: The release wants a person's approval before production, and has none.
        NotPromoted: Its canary was not promoted, or over another production than the one of now.
        PlaceTaken: Another model holds the place.
        PlaceBusy: Somebody else acts on it now.
        RouterUnavailable: The routes cannot be written, or the router does not act on them; it is production.
    """

    def promoted(state: PlaceState) -> PlaceState:
        serves, record = state.production, read_canary_record(store, release_id, target)
        if serves is not None and serves.repository == repository and state.model_id == model_id:
            return state
        require_place(store, target, model_id)
        require_production_approved(store, release_id, target)
        if record is None or record.phase is not Phase.PROMOTED or record.repository != repository:
            how = "has no canary" if record is None else f"has a canary that is {record.phase}"
            raise NotPromoted(f"release {release_id} {how} on {target}", hint="production is as it was")
        left = state.way_back
        if left is not None and (left.left, left.began_at) == (release_id, record.began_at):  # done or not
            raise NotPromoted(f"release {release_id} was rolled back on {target} by {left.by}", hint="run it again")
        if record.production_since != (serves.promoted_at if serves else None):
            hint = "run the release again: its canary starts from the beginning"
            raise NotPromoted(f"production on {target} has moved since release {release_id} was promoted", hint=hint)
        now = datetime.now(UTC)
        changes: dict[str, object] = {
            "production": Pointer(
                release_id=release_id, repository=repository, slot=record.candidate, recipe=recipe, promoted_at=now
            ),
            "previous": serves,
            "previous_model": state.model_id,
            "keep_until": now + timedelta(hours=record.policy.rollback_window_hours),
            "taken_back": tuple(one for one in state.taken_back if one != release_id),
        }
        if state.model_id != model_id:
            changes |= {"model_id": model_id, "since": now, "by": release_id, "next_model": "", "next_by": ""}
        lease.confirm()  # a rollback takes it over, and its word is the last
        log.info("production moves", release=release_id, slot=record.candidate, repository=str(repository))
        return state.model_copy(update=changes)

    with acting(store, target) as lease:
        claim_place(store, target, model_id, by=release_id)
        state = edit_place(store, target, promoted)
        router = find_router(state.production) if state.production is not None else None
        record = read_canary_record(store, release_id, target)
        if router is not None and record is not None and record.phase is Phase.PROMOTED:
            traffic, before = router.read()[0], state.way_back_to
            if traffic.candidate == record.candidate:  # stable still has its share
                standby = before.slot if before is not None and before.repository == record.stable_repository else None
                epoch = epoch_above(lease.epoch, record.epoch, traffic.epoch)
                send(store, target, router, patience, Send(standby, settles=True), epoch=epoch)
    return state
