"""Makes a release production at a place, as its promotion would, or a canary there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.record import CanaryRecord
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, Pointer, edit_place

SERVED = ArtifactRef(kind="model_repository", digest="a" * 64)


def pointer(release_id: str, **known: Any) -> Pointer:
    """A release in a slot, of a repository that nobody made."""
    told = {"repository": SERVED, "slot": "blue", "recipe": "none", "promoted_at": datetime.now(UTC)}
    return Pointer(release_id=release_id, **told | known)


def serve(
    store: ArtifactStore,
    model_id: str,
    place: str,
    production: Pointer | None,
    previous: Pointer | None = None,
    *,
    keep_until: datetime | None = None,
) -> PlaceState:
    """Write down what serves, and what served before; all else of the place stays."""
    changes = {"model_id": model_id, "production": production, "previous": previous, "keep_until": keep_until}
    changes["previous_model"] = model_id if previous is not None else ""
    return edit_place(store, place, lambda state: state.model_copy(update=changes))


def canary_record(release_id: str = "r2", target: str = "cpu", **known: Any) -> CanaryRecord:
    """A canary of green beside blue, of a repository that nobody made."""
    told = {"repository": SERVED, "stable": "blue", "candidate": "green", "began_at": 0.0}
    return CanaryRecord(release_id=release_id, target=target, **told | known)
