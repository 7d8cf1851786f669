"""Makes a release production at a place, as its promotion would."""

from __future__ import annotations

from datetime import datetime

from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, Pointer, edit_place


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
    before = model_id if previous is not None else ""
    changes = {
        "model_id": model_id,
        "production": production,
        "previous": previous,
        "previous_model": before,
        "keep_until": keep_until,
    }
    return edit_place(store, place, lambda state: state.model_copy(update=changes))
