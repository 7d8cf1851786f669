"""The newest releases of each config, a small document each.

    note_release(store, record)            # when a release is resolved
    newest_of_config(store, "llama-fp8")   # the newest first

So a new release finds those that it is compared with by one request, however many the store holds. A noted release may
be gone: its record decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime

from llm_pipeline.base.records import Frozen
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood

NOTED = 20
"""As many of each config are remembered."""


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
    name = _name(record.release.name)
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


def _name(config: str) -> str:
    return f"index/newest/{config}.json"


def _newest(store: ArtifactStore, config: str) -> tuple[_Newest, str | None]:
    """A document and its revision."""
    name = _name(config)
    document = store.read_document(name)
    if document is None:
        return _Newest(), None
    hint = "remove this document: the next releases are noted in a new one"
    return understood(_Newest, document.value, name, hint=hint), document.revision
