"""What a place needs while nothing is on trial: decided by what is written down of it and what is found there.

    for action in decide(state, record, seen, now):     # pure
        ...

Production that has ended is started at once, whoever owns the place. A promoted release gets the traffic that was left
on the version before it. That one stays warm and stands by until its time is over, and is stopped then. Every part can
be done again, so whoever comes next goes on where somebody was killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from llm_pipeline.base.errors import PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.moving import have_answering, retire, token_of, traffic_to
from llm_pipeline.canary.record import CanaryRecord, latest_canary
from llm_pipeline.canary.router import ALL, Patience, RouterUnavailable, RouteState, SlotName, TrafficRouter, all_to
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.operations.served_place import acting
from llm_pipeline.release.trusted_pointers import require_served
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, Pointer, read_place

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


def seen_at(place: ServedPlace, state: PlaceState) -> Seen:
    """Look at router and servers."""
    try:
        traffic = place.router.read()[0] if place.router is not None else None
    except RouterUnavailable as error:
        log.warning("the router cannot be read", reason=str(error))
        traffic = None
    stands_by = False
    if place.router is not None and state.production is not None and state.previous is not None:
        slots = (state.production.slot, state.previous.slot)
        asked = all_to(slots[0], owner="", epoch=0, standby=slots[1] if slots[0] != slots[1] else None)
        stands_by = place.router.nearest(asked).standby is not None
    known = [one for one in (state.production, state.previous) if one is not None]
    return Seen(
        traffic=traffic,
        stands_by=stands_by,
        ended=frozenset(one.slot for one in known if place.slots.ended(one.slot)),
        serving=frozenset(one.slot for one in known if place.slots.serves(one.slot, one.repository)),
    )


def _wanted(place: ServedPlace, now: datetime) -> list[Action]:
    state = read_place(place.store, place.target)
    record = latest_canary(place.store, place.target)
    return decide(state, record, seen_at(place, state), now)


def _attempt(place: ServedPlace, action: Action, token: FencingToken) -> PipelineError | None:
    slots, seconds = place.slots, place.patience.prove
    try:
        match action:
            case Start(pointer):
                require_served(place.store, read_place(place.store, place.target).model_id, place.target, pointer)
                have_answering(slots, pointer.slot, pointer.repository, token, seconds=seconds)
            case Send() if place.router is not None:
                send(place.store, place.target, place.router, place.patience, action, epoch=token.epoch)
            case Stop(pointer):
                record = latest_canary(place.store, place.target)
                seconds = (record.policy if record else CanaryPolicy()).drain_seconds
                retire(place, pointer.slot, pointer.repository, token=token, drain_seconds=seconds)
    except PipelineError as error:
        return error
    return None
