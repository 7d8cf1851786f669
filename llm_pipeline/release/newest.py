"""The newest releases of each config, a small document each.

    note_release(store, record)            # when a release is resolved
    newest_of_config(store, "llama-fp8")   # the newest first

So a new release finds those that it is compared with by one request, however many the store holds. A noted release may
be gone: its record decides. A damaged document is made anew from the records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.release.record import ReleaseRecord, readable_record
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood
from llm_pipeline.store.references import release_ids

NOTED = 20
"""As many of each config are remembered."""

_FOLDER = "index/newest"

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

    def with_release(self, record: ReleaseRecord) -> _Newest:
        noted = NotedRelease(release_id=record.release_id, created_at=record.created_at)
        others = [one for one in self.releases if one.release_id != noted.release_id]
        newest = sorted([*others, noted], key=lambda one: one.created_at, reverse=True)
        return _Newest(releases=tuple(newest[:NOTED]))


def note_release(store: ArtifactStore, record: ReleaseRecord) -> None:
    """Remember a release that was resolved just now.

    Raises:
        Transient: The store cannot be written now.
    """
    name = _document(record.release.name)
    while True:
        newest, revision = _newest(store, record.release.name)
        with contextlib.suppress(Conflict):
            store.write_document(name, newest.with_release(record).model_dump(mode="json"), revision)
            return


def newest_of_config(store: ArtifactStore, config: str) -> Sequence[NotedRelease]:
    """The newest releases of a release config, the newest first.

    Raises:
        Transient: The store cannot be read now.
    """
    return _newest(store, config)[0].releases


def _document(config: str) -> str:
    return f"{_FOLDER}/{config}.json"


def _newest(store: ArtifactStore, config: str) -> tuple[_Newest, str | None]:
    """A document and its revision; a damaged one is removed and read from the records."""
    name = _document(config)
    try:
        document = store.read_document(name)
        return (understood(_Newest, document.value, name), document.revision) if document else (_Newest(), None)
    except IntegrityError as error:
        log.warning("the newest releases are found from their records", reason=error.message)
    store.delete_document(name)
    newest = _Newest()
    for release_id in release_ids(store):
        record = readable_record(store, release_id)
        if record is not None and record.release.name == config:
            newest = newest.with_release(record)
    return newest, None
