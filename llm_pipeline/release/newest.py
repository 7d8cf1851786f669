"""The newest releases of each config, a small document each.

    note_release(store, record)            # when a release is resolved
    newest_of_config(store, "llama-fp8")   # the newest first

So a new release finds those that it is compared with by one request, however many the store holds. A noted release may
be gone: its record decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from llm_pipeline.base.records import Frozen
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.store.artifact_store import ArtifactStore

NOTED = 20
"""As many of each config are remembered."""
_DAMAGED = "remove this document: the next releases are noted in a new one"


class NotedRelease(Frozen):
    """A release as these documents remember it.

    Attributes:
        created_at: When it was resolved last.
    """

    release_id: str
    created_at: datetime


class _Newest(Frozen):
    releases: tuple[NotedRelease, ...] = ()


def note_release(store: ArtifactStore, record: ReleaseRecord) -> None:
    """Remember a release that was resolved just now.

    Raises:
        Transient: The store cannot be written now.
    """
    noted = NotedRelease(release_id=record.release_id, created_at=record.created_at)

    def with_it(known: _Newest) -> _Newest:
        others = [one for one in known.releases if one.release_id != noted.release_id]
        newest = sorted([*others, noted], key=lambda one: one.created_at, reverse=True)
        return _Newest(releases=tuple(newest[:NOTED]))

    store.edit_as(_name(record.release.name), _Newest, with_it, hint=_DAMAGED)


def newest_of_config(store: ArtifactStore, config: str) -> Sequence[NotedRelease]:
    """The newest releases of a release config, the newest first.

    Raises:
        Transient: The store cannot be read now.
    """
    known, _ = store.read_as(_name(config), _Newest, hint=_DAMAGED)
    return known.releases if known else ()


def _name(config: str) -> str:
    return f"index/newest/{config}.json"
