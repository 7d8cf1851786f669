"""Pointers: which packaged release serves production on a target, and which one served before."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood

Slot = Literal["blue", "green"]
_MOST_TAKEN_BACK = 20


class Pointer(Frozen):
    """A release in a production slot."""

    release_id: str
    repository: ArtifactRef
    slot: Slot
    recipe: str
    promoted_at: datetime


class Pointers(Frozen):
    """What serves now, and what served before, on one target.

    Attributes:
        previous: What a rollback of production restores; None after a rollback: only another canary brings a release
            that was rolled back into production again.
        taken_back: Releases that were rolled back on this target since they were promoted, the latest last.
    """

    production: Pointer | None = None
    previous: Pointer | None = None
    taken_back: tuple[str, ...] = ()

    def without_release(self, release_id: str) -> Pointers:
        """The pointers with a release noted as rolled back; writing them fences a run that is about to promote it."""
        others = [one for one in self.taken_back if one != release_id]
        return self.model_copy(update={"taken_back": (*others, release_id)[-_MOST_TAKEN_BACK:]})


def pointers_name(model_id: str, target: str) -> str:
    """Name of the pointers' document."""
    return f"pointers/{model_id}/{target}.json"


def read_pointers(store: ArtifactStore, model_id: str, target: str) -> tuple[Pointers, str | None]:
    """The pointers of a model on a target, with the revision they were read at.

    Raises:
        IntegrityError: The document is damaged.
    """
    name = pointers_name(model_id, target)
    document = store.read_document(name)
    return (understood(Pointers, document.value, name), document.revision) if document else (Pointers(), None)
