"""Replacement: a model takes the places of a release over from the models that hold them, on a person's word."""

from __future__ import annotations

from collections.abc import Iterable

from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.places import hand_over


def replace(store: ArtifactStore, places: Iterable[str], model_id: str, *, by: str) -> None:
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
