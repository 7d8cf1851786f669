"""The newest releases of each config and of each model, one small document each.

    note_release(store, record)            # when a release is resolved
    newest_of_config(store, "llama-fp8")   # the newest first

So a new release finds those that it is compared with by one request, however many the store holds. A noted release may
be gone: its record decides. A store whose releases were resolved by a version without these documents is read once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime

from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.release.record import ReleaseRecord, readable_record
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood
from llm_pipeline.store.model_documents import model_part
from llm_pipeline.store.references import release_ids

NOTED = 20
"""As many of each config, and of each model, are remembered."""

_FOLDER = "index/newest"
_COMPLETE = f"{_FOLDER}/complete.json"
"""Its presence says that every release of the store was noted, so that a missing document means that there are none."""

log = get_logger(__name__)


class NotedRelease(Frozen):
    """A release as these documents remember it.

    Attributes:
        created_at: When it was resolved last.
    """

    release_id: str
    created_at: datetime


class _Newest(Frozen):
    releases: tuple[NotedRelease, ...] = ()

    def with_release(self, noted: NotedRelease) -> _Newest:
        others = [one for one in self.releases if one.release_id != noted.release_id]
        newest = sorted([*others, noted], key=lambda one: one.created_at, reverse=True)
        return _Newest(releases=tuple(newest[:NOTED]))


def note_release(store: ArtifactStore, record: ReleaseRecord) -> None:
    """Remember a release that was resolved just now.

    Raises:
        Transient: The store cannot be written now.
    """
    for name in _documents(record):
        _newest(store, name)  # a store of a version before is noted whole, first
    _note(store, record)


def newest_of_config(store: ArtifactStore, config: str) -> Sequence[NotedRelease]:
    """The newest releases of a release config, the newest first.

    Raises:
        Transient: The store cannot be read now.
    """
    return _newest(store, _of_config(config)).releases


def newest_of_model(store: ArtifactStore, model_id: str) -> Sequence[NotedRelease]:
    """The newest releases of a model by any config, the newest first.

    Raises:
        Transient: The store cannot be read now.
    """
    return _newest(store, _of_model(model_id)).releases


def _newest(store: ArtifactStore, name: str) -> _Newest:
    if store.read_document(_COMPLETE) is not None:
        with contextlib.suppress(IntegrityError):
            return _read(store, name)[0]
    return _noted_anew(store, name)


def _noted_anew(store: ArtifactStore, name: str) -> _Newest:
    """Note every release of the store; returns what one document is to hold, whether it could be written or not."""
    found = [readable_record(store, release_id) for release_id in release_ids(store)]
    records = [record for record in found if record is not None]
    newest = _Newest()
    for record in records:
        if name in _documents(record):
            newest = newest.with_release(_noted(record))
    try:
        for record in records:
            _note(store, record)
        if store.read_document(_COMPLETE) is None:
            store.write_document(_COMPLETE, {}, None)
    except Transient as error:  # somebody else did it, or this process may only read
        log.warning("the newest releases are not noted", reason=str(error))
    return newest


def _note(store: ArtifactStore, record: ReleaseRecord) -> None:
    for name in _documents(record):
        while True:
            newest, revision = _read_or_empty(store, name)
            wanted = newest.with_release(_noted(record))
            if wanted == newest:
                break
            with contextlib.suppress(Conflict):
                store.write_document(name, wanted.model_dump(mode="json"), revision)
                break


def _noted(record: ReleaseRecord) -> NotedRelease:
    return NotedRelease(release_id=record.release_id, created_at=record.created_at)


def _documents(record: ReleaseRecord) -> tuple[str, str]:
    return _of_config(record.release.name), _of_model(record.model.id)


def _of_config(name: str) -> str:
    return f"{_FOLDER}/configs/{name}.json"


def _of_model(model_id: str) -> str:
    return f"{_FOLDER}/models/{model_part(model_id)}.json"


def _read(store: ArtifactStore, name: str) -> tuple[_Newest, str | None]:
    """A document and its revision.

    Raises:
        IntegrityError: It is damaged.
    """
    document = store.read_document(name)
    return (understood(_Newest, document.value, name), document.revision) if document else (_Newest(), None)


def _read_or_empty(store: ArtifactStore, name: str) -> tuple[_Newest, str | None]:
    """The same; a damaged one is removed, for all that was in it is in the records."""
    try:
        return _read(store, name)
    except IntegrityError:
        store.delete_document(name)
        return _Newest(), None
