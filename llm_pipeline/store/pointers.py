"""Pointers: which packaged release serves production on a target, and which one served before."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from llm_pipeline.stages.contract import ArtifactRef, Frozen
from llm_pipeline.store.artifact_store import ArtifactStore

Slot = Literal["blue", "green"]


class Pointer(Frozen):
    """A release in a production slot.

    Attributes:
        repository: Its model repository.
        slot: The slot that it runs in.
        recipe: The quantization recipe it was made with.
    """

    release_id: str
    repository: ArtifactRef
    slot: Slot
    recipe: str
    promoted_at: datetime


class Pointers(Frozen):
    """What serves now and what served before, on one target."""

    production: Pointer | None = None
    previous: Pointer | None = None


def pointers_name(model_id: str, target: str) -> str:
    """Name of the pointers' document."""
    return f"pointers/{model_id.replace('/', '--')}/{target}.json"


def read_pointers(store: ArtifactStore, model_id: str, target: str) -> tuple[Pointers, str | None]:
    """The pointers of a model on a target, with the revision they were read at."""
    document = store.read_document(pointers_name(model_id, target))
    if document is None:
        return Pointers(), None
    return Pointers.model_validate(document.value), document.revision


def write_pointers(store: ArtifactStore, model_id: str, target: str, pointers: Pointers, expect: str | None) -> str:
    """Move the pointers, if nobody else did since they were read.

    Raises:
        Conflict: Somebody else moved them.
    """
    return store.write_document(pointers_name(model_id, target), pointers.model_dump(mode="json"), expect)
