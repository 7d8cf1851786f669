"""Rollback while the store accepts no writes: users are moved now, and the guard or the next rollback records it.

What is gone back to is what the documents say, as long as they can be read. The router keeps the note, as its owner:
the guard finds it there, and so does whoever asks again. Nothing is stopped that nobody wrote down. Without documents
nobody can tell what served before (the slot that stands by may hold a candidate), so nobody is moved.
"""

from __future__ import annotations

from typing import NoReturn

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary.moving import epoch_above, have_answering, traffic_to, wait_usable
from llm_pipeline.canary.open_router import name_release
from llm_pipeline.canary.rollback import LEFT_UNRECORDED, move_unrecorded
from llm_pipeline.canary.router import RouterUnavailable, TrafficRouter, all_to
from llm_pipeline.operations.served_place import ServedPlace, free_slot, left_for, newest, on_trial
from llm_pipeline.release.trusted_pointers import require_served
from llm_pipeline.store.pointers import Pointer, read_pointers

log = get_logger(__name__)

_ASK_AGAIN = "make room in the store and run it again: that finishes it"


def leave_unrecorded(place: ServedPlace, leaving: str, refused: Transient) -> NoReturn:
    """Move users away from a release, as `rollback.roll_back` would, and say what remains to be done.

    Args:
        place: Where.
        leaving: As for `roll_back`.
        refused: What the store said.

    Raises:
        Transient: In any case: nothing is recorded. It says where the traffic is.
        ConfigError: There is nothing to go back to.
        NoWayBack: What is gone back to does not answer and cannot be started; traffic stays where it is answered.
    """
    words = _moved(place, leaving)
    log.warning(words, gpu_target=place.target, reason=str(refused))
    message = f"{words}; nothing could be recorded: {refused.message}"
    raise Transient(message, where=refused.where or place.target, hint=_ASK_AGAIN) from refused


def _moved(place: ServedPlace, leaving: str) -> str:
    """Returns where the traffic is, in words."""
    try:
        pointers = read_pointers(place.store, place.model_id, place.target)[0]
        trial, production = on_trial(place, pointers), pointers.production
        known = left_for(place, production) if production is not None and not leaving and trial is None else None
    except Transient:
        moved = not leaving and move_unrecorded(place.site, "what is on trial")
        return "all traffic was sent to stable" if moved else "nothing was moved: what served before is unknown"
    if known is not None:
        return f"nothing was moved: {known} was rolled back before"
    if trial is not None and newest(trial, production).startswith(leaving):
        moved = move_unrecorded(place.site, trial.release_id, trial)
        return f"all traffic was sent away from {trial.release_id}" if moved else f"{trial.release_id} has its traffic"
    if production is None or not production.release_id.startswith(leaving):
        return f"nothing was moved: {leaving or 'nothing'} does not serve on {place.target}"
    if trial is not None:
        moved = move_unrecorded(place.site, trial.release_id, trial)
        return f"{production.release_id} serves on, and {trial.release_id} gets {'nothing' if moved else 'its traffic'}"
    if pointers.previous is None:
        hint = "release another one: a release that was rolled back does not return"
        raise ConfigError(f"{place.model_id} has no previous release on {place.target}", hint=hint)
    return _to_previous(place, production, pointers.previous)


def _to_previous(place: ServedPlace, production: Pointer, previous: Pointer) -> str:
    """The release before production is made to answer and takes all traffic."""
    require_served(place.store, place.model_id, place.target, previous)
    router, slots, slot = place.router, place.slots, free_slot(previous, production)
    if router is None:
        raise RouterUnavailable("production cannot be left from here", where=place.target)
    words = f"all traffic is on {previous.release_id} in {slot}"
    state = router.read()[0]
    if is_left_unrecorded(router, production):
        return words
    if slots.alive(slot) and not slots.serves(slot, previous.repository):
        return f"nothing was moved: {slot} does not serve {previous.release_id}"
    if have_answering(slots, slot, previous.repository, slots.newest(), seconds=place.patience.prove):
        wait_usable(router, slot, place.patience.usable)
    name_release(router, slot, previous.release_id)
    owner = f"{LEFT_UNRECORDED}{production.release_id}"
    confirmed = traffic_to(router, all_to(slot, owner=owner, epoch=epoch_above(0, state.epoch)), place.patience)
    return words if confirmed else f"{words}, which the router did not confirm"


def is_left_unrecorded(router: TrafficRouter | None, production: Pointer) -> bool:
    """Whether users were moved away from this production without a record of it."""
    if router is None:
        return False
    return router.read()[0].owner == f"{LEFT_UNRECORDED}{production.release_id}"
