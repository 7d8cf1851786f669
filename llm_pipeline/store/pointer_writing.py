"""Moving the pointers of production: for the operations alone, which do it under the lease of the place."""

from __future__ import annotations

from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.pointers import Pointers, pointers_name


def write_pointers(store: ArtifactStore, model_id: str, target: str, pointers: Pointers, expect: str | None) -> str:
    """Move the pointers, if nobody else did since they were read.

    Raises:
        Conflict: Somebody else moved them.
    """
    return store.write_document(pointers_name(model_id, target), pointers.model_dump(mode="json"), expect)
