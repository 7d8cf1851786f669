"""Promotion: what a canary ended well with becomes production, in the pointers and in the routes.

The pointers move first, under the lease of the place. Then the share of the traffic that had stayed on stable goes to
the new production, and what served before stands by for as long as it is kept warm. Killed in between, the next one who
asks finishes it, or the guard does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.moving import epoch_above, standby_after, traffic_to
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import CanaryJournal, Phase, read_canary_record
from llm_pipeline.canary.router import RouterUnavailable, TrafficRouter, all_to
from llm_pipeline.operations.acting import acting
from llm_pipeline.operations.decisions import require_production_approved
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.places import claim_place, hand_over, serving_at, settle_place
from llm_pipeline.store.pointer_writing import write_pointers
from llm_pipeline.store.pointers import Pointer, Pointers, read_pointers

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
        Conflict: Somebody else changed a place at the same moment; the same call is safe again.
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
) -> Pointers:
    """Make a release whose canary was promoted production; the one before it stays in its slot, warm.

    Idempotent: a release that already is production changes nothing. Nothing else makes a release production, so a
    person's approval is checked here.

    Args:
        store: Where record and pointers are.
        promotion: What is to be production.
        find_router: Finds the place's router once the pointers have moved, or starts it; None where none ever ran.
        patience: How long the traffic's move is tried.

    Returns:
        The pointers afterwards.

    Raises:
        NotApproved: The release wants a person's approval before production, and has none.
        NotPromoted: Its canary was not promoted, or over another production than the one of now.
        PlaceTaken: Another model holds the place.
        PlaceBusy: Somebody else acts on it now.
        Conflict: Somebody else moved the pointers at the same moment.
        RouterUnavailable: The routes cannot be written, or the router does not act on them; the pointers have moved.
    """
    with acting(store, promotion.target) as lease:
        pointers = _move_pointers(store, promotion, lease)
        router = find_router(pointers.production) if pointers.production is not None else None
        if router is not None:
            journal = CanaryJournal(store, promotion.release_id, promotion.target)
            _give_all_traffic(journal, router, patience, lease)
    return pointers


def finish_promotion(
    store: ArtifactStore, target: str, release_id: str, router: TrafficRouter, patience: Patience
) -> bool:
    """Send a production whose pointers have moved everything; returns whether anything had to be moved.

    Raises:
        PlaceBusy: Somebody else acts on the place now.
        RouterUnavailable: The routes cannot be written, or the router does not act on them.
    """
    with acting(store, target) as lease:
        return _give_all_traffic(CanaryJournal(store, release_id, target), router, patience, lease)


def _move_pointers(store: ArtifactStore, promotion: Promotion, lease: Lease) -> Pointers:
    model_id, target, release_id = promotion.model_id, promotion.target, promotion.release_id
    claim_place(store, target, model_id, by=release_id)
    pointers, revision = read_pointers(store, model_id, target)
    if pointers.production is not None and pointers.production.repository == promotion.repository:
        settle_place(store, target, model_id, by=release_id)
        return pointers
    require_production_approved(store, release_id, target)
    promoted = _promoted(store, promotion)
    others = tuple(one for one in pointers.taken_back if one != release_id)
    moved = Pointers(production=promoted, previous=pointers.production, taken_back=others)
    lease.confirm()  # a rollback takes it over, and its word is the last
    write_pointers(store, model_id, target, moved, revision)
    settle_place(store, target, model_id, by=release_id)
    log.info("production moved", release=release_id, slot=promoted.slot, repository=str(promotion.repository))
    return moved


def _promoted(store: ArtifactStore, promotion: Promotion) -> Pointer:
    """The pointer to what its canary promoted."""
    target, release_id = promotion.target, promotion.release_id
    serving, record = serving_at(store, target), read_canary_record(store, release_id, target)
    if record is None or record.phase is not Phase.PROMOTED or record.repository != promotion.repository:
        state = "has no canary" if record is None else f"has a canary that is {record.phase}"
        raise NotPromoted(f"release {release_id} {state} on {target}", hint="production is as it was")
    if record.production_since != (serving.pointer.promoted_at if serving else None):
        raise NotPromoted(
            f"production on {target} has moved since release {release_id} was promoted",
            hint="run the release again: its canary starts from the beginning",
        )
    return Pointer(
        release_id=release_id,
        repository=promotion.repository,
        slot=record.candidate,
        recipe=promotion.recipe,
        promoted_at=datetime.now(UTC),
    )


def _give_all_traffic(journal: CanaryJournal, router: TrafficRouter, patience: Patience, lease: Lease) -> bool:
    """Send production everything, and leave nothing on trial.

    Idempotent: traffic that is not the promoted canary's any more is left as it is.
    """
    record = journal.load()
    state, _ = router.read()
    if record is None or record.phase is not Phase.PROMOTED or state.candidate != record.candidate:
        return False
    epoch = epoch_above(lease.epoch, record.epoch, state.epoch)
    standby = standby_after(journal.store, record)
    settled = all_to(record.candidate, owner=f"settled {record.release_id}", epoch=epoch, standby=standby)
    want = router.nearest(settled)
    record = journal.save(record.model_copy(update={"intended": want, "epoch": epoch}))
    if not traffic_to(router, want, patience):
        raise RouterUnavailable("it does not act on the routes of a settled release", where=record.target)
    journal.save(record.marked("all traffic", share=1.0).model_copy(update={"applied": want}))
    log.info("all traffic is on production", release=record.release_id, slot=record.candidate)
    return True
