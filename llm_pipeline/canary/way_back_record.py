"""The record of a model's latest rollback on a target: written before anything moves, and again when it is done."""

from __future__ import annotations

from datetime import datetime

from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood


class WayBack(Frozen):
    """A rollback from one release to another. Any process that finds an unfinished one completes it.

    Attributes:
        left: The release that is rolled back: it was on trial, or served.
        to: The release that serves afterwards.
        by: Who asked for it, and why.
        repository: What `left` served; None in records that do not say.
        began_at: When the canary of `left` began, if it was on trial: later attempts are not affected.
        done: Everything was moved and stopped.
    """

    left: str
    to: str
    by: str
    asked_at: datetime
    repository: ArtifactRef | None = None
    began_at: float | None = None
    done: bool = True


def read_way_back(store: ArtifactStore, model_id: str, target: str) -> WayBack | None:
    """The last one; None when there was none.

    Raises:
        IntegrityError: The document is damaged.
    """
    name = _name(model_id, target)
    document = store.read_document(name)
    return understood(WayBack, document.value, name, hint="remove this document") if document else None


def write_way_back(store: ArtifactStore, model_id: str, target: str, way_back: WayBack) -> None:
    """Replace it; for the holder of the target's lease.

    Raises:
        Conflict: Somebody else wrote it at the same moment.
    """
    name = _name(model_id, target)
    known = store.read_document(name)
    store.write_document(name, way_back.model_dump(mode="json"), known.revision if known else None)


def _name(model_id: str, target: str) -> str:
    return f"ways_back/{model_id}/{target}.json"
