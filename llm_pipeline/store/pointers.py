"""Pointers: which packaged release serves production on a target, and which one served before."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood
from llm_pipeline.store.model_documents import ModelDocument, is_shared, model_of_release, models_of_part

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
    return pointers_document(model_id, target).name


def read_pointers(store: ArtifactStore, model_id: str, target: str) -> tuple[Pointers, str | None]:
    """The pointers of a model on a target, with the revision they were read at.

    Raises:
        IntegrityError: The document is damaged.
    """
    place = pointers_document(model_id, target)
    document = place.read(store)
    if document is None:
        return Pointers(), None
    if not is_shared(document):
        return understood(Pointers, document.value, place.name), document.revision
    name = place.shared or place.name
    both = understood(Pointers, document.value, name)
    return _of_model(store, both, model_id, models_of_part(name.split("/")[1])), document.revision


def pointers_document(model_id: str, target: str) -> ModelDocument:
    """Where the pointers of a model on a target are kept."""
    return ModelDocument.of(f"pointers/{{model}}/{target}.json", model_id)


def _of_model(store: ArtifactStore, pointers: Pointers, model_id: str, sharing: tuple[str, ...]) -> Pointers:
    """Those to releases of the model; one to a release without a record is the first model's, as it was before."""

    def mine(pointer: Pointer | None) -> Pointer | None:
        if pointer is None:
            return None
        known = model_of_release(store, pointer.release_id)
        return pointer if (known if known in sharing else sharing[0]) == model_id else None

    return Pointers(production=mine(pointers.production), previous=mine(pointers.previous))
