"""After the canary: the pointers move, and the old version stays warm."""

from __future__ import annotations

from datetime import UTC, datetime

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import Phase, read_record
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.places import claim_place, serving_at, settle_place
from llm_pipeline.store.pointers import Pointer, Pointers, read_pointers, write_pointers

log = get_logger(__name__)


class NotPromoted(Terminal):
    """The canary of this release did not end in production."""


def settle_production(
    store: ArtifactStore, *, model_id: str, target: str, release_id: str, repository: ArtifactRef, recipe: str
) -> Pointers:
    """Move the pointers to a release whose canary was promoted; the version before it stays in its slot, warm.

    Idempotent: a release that already is production changes nothing.

    Raises:
        NotPromoted: Its canary was not promoted, or over another production than the one of now.
        PlaceTaken: Another model holds the place.
        Conflict: Somebody else moved the pointers at the same moment.
    """
    claim_place(store, target, model_id, by=release_id)
    pointers, revision = read_pointers(store, model_id, target)
    if pointers.production is not None and pointers.production.repository == repository:
        settle_place(store, target, model_id, by=release_id)
        return pointers
    serving = serving_at(store, target)
    record = read_record(store, release_id, target)
    if record is None or record.phase is not Phase.PROMOTED or record.repository != repository:
        state = "has no canary" if record is None else f"has a canary that is {record.phase}"
        raise NotPromoted(f"release {release_id} {state} on {target}", hint="production is as it was")
    if record.production_since != (serving.pointer.promoted_at if serving else None):
        raise NotPromoted(
            f"production on {target} has moved since release {release_id} was promoted",
            hint="run the release again: its canary starts from the beginning",
        )
    promoted = Pointer(
        release_id=release_id,
        repository=repository,
        slot=record.candidate,
        recipe=recipe,
        promoted_at=datetime.now(UTC),
    )
    others = tuple(one for one in pointers.taken_back if one != release_id)
    moved = Pointers(production=promoted, previous=pointers.production, taken_back=others)
    write_pointers(store, model_id, target, moved, revision)
    settle_place(store, target, model_id, by=release_id)
    log.info("production moved", release=release_id, slot=promoted.slot, repository=str(repository))
    return moved
