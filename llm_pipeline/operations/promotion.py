"""Promotion: what a canary ended well with becomes production, in the place's document and in the routes.

The document is first, under the lease of the place. Then the share of the traffic that had stayed on stable goes to
the new production, and what served before stands by for as long as it is kept warm. Killed in between, the next one who
asks finishes it, or the guard does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.moving import epoch_above, standby_after
from llm_pipeline.canary.record import CanaryRecord, Phase, read_canary_record
from llm_pipeline.canary.router import Patience, TrafficRouter
from llm_pipeline.operations.decisions import require_production_approved
from llm_pipeline.operations.served_place import acting
from llm_pipeline.operations.upkeep import Send, send
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.place_state import PlaceState, Pointer, edit_place
from llm_pipeline.store.places import claim_place, hand_over, require_place

log = get_logger(__name__)


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


@dataclass(frozen=True)
class Promotion:
    """What is to be production.

    Attributes:
        model_id: `organisation/name` on the hub.
        target: The place.
        release_id: The release whose canary was promoted there.
        repository: What it serves.
        recipe: The quantization recipe that was chosen.
    """

    model_id: str
    target: str
    release_id: str
    repository: ArtifactRef
    recipe: str


def promote(
    store: ArtifactStore,
    promotion: Promotion,
    *,
    find_router: Callable[[Pointer], TrafficRouter | None],
    patience: Patience,
) -> PlaceState:
    """Make a release whose canary was promoted production; the one before it stays in its slot, warm.

    Idempotent: a release that already is production changes nothing. Nothing else makes a release production, so a
    person's approval is checked here.

    Args:
        store: Where record and pointers are.
        promotion: What is to be production.
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
    with acting(store, promotion.target) as lease:
        state = _into_production(store, promotion, lease)
        router = find_router(state.production) if state.production is not None else None
        record = read_canary_record(store, promotion.release_id, promotion.target)
        if router is not None and record is not None and record.phase is Phase.PROMOTED:
            traffic = router.read()[0]
            if traffic.candidate == record.candidate:  # stable still has its share
                epoch = epoch_above(lease.epoch, record.epoch, traffic.epoch)
                action = Send(standby_after(state, record), settles=True)
                send(store, promotion.target, router, patience, action, epoch=epoch)
    return state


def _into_production(store: ArtifactStore, promotion: Promotion, lease: Lease) -> PlaceState:
    model_id, target, release_id = promotion.model_id, promotion.target, promotion.release_id
    claim_place(store, target, model_id, by=release_id)

    def promoted(state: PlaceState) -> PlaceState:
        serves = state.production
        if serves is not None and serves.repository == promotion.repository and state.model_id == model_id:
            return state
        require_place(store, target, model_id)
        require_production_approved(store, release_id, target)
        record = _promoted(store, promotion, state)
        now = datetime.now(UTC)
        production = Pointer(
            release_id=release_id,
            repository=promotion.repository,
            slot=record.candidate,
            recipe=promotion.recipe,
            promoted_at=now,
        )
        changes: dict[str, object] = {
            "production": production,
            "previous": serves,
            "previous_model": state.model_id,
            "keep_until": now + timedelta(hours=record.policy.rollback_window_hours),
            "taken_back": tuple(one for one in state.taken_back if one != release_id),
        }
        if state.model_id != model_id:
            changes |= {"model_id": model_id, "since": now, "by": release_id, "next_model": "", "next_by": ""}
        lease.confirm()  # a rollback takes it over, and its word is the last
        log.info("production moves", release=release_id, slot=record.candidate, repository=str(promotion.repository))
        return state.model_copy(update=changes)

    return edit_place(store, target, promoted)


def _promoted(store: ArtifactStore, promotion: Promotion, state: PlaceState) -> CanaryRecord:
    """The record of the canary that promoted it, over what serves now."""
    target, release_id, production = promotion.target, promotion.release_id, state.production
    record = read_canary_record(store, release_id, target)
    if record is None or record.phase is not Phase.PROMOTED or record.repository != promotion.repository:
        how = "has no canary" if record is None else f"has a canary that is {record.phase}"
        raise NotPromoted(f"release {release_id} {how} on {target}", hint="production is as it was")
    if record.production_since != (production.promoted_at if production else None):
        raise NotPromoted(
            f"production on {target} has moved since release {release_id} was promoted",
            hint="run the release again: its canary starts from the beginning",
        )
    return record
