"""The newest releases of each config, a small document each.

    note_release(store, record)            # when a release is resolved
    newest_of_config(store, "llama-fp8")   # the newest first

So a new release finds those that it is compared with by one request, however many the store holds. A noted release may
be gone: its record decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.store.artifact_store import ArtifactStore

NOTED = 20
"""As many of each config are remembered."""
_DAMAGED = "remove this document: the next releases are noted in a new one"


class _Newest(Frozen):
    resolved: dict[str, datetime] = Field(default={})
    """When each release was resolved last, by its id; the newest first."""


def note_release(store: ArtifactStore, record: ReleaseRecord) -> None:
    """Remember a release that was resolved just now.

    Raises:
        Transient: The store cannot be written now.
    """

    def with_it(known: _Newest) -> _Newest:
        resolved = known.resolved | {record.release_id: record.created_at}
        newest = sorted(resolved.items(), key=lambda one: one[1], reverse=True)
        return _Newest(resolved=dict(newest[:NOTED]))

    store.edit_as(_name(record.release.name), _Newest, with_it, hint=_DAMAGED)


def newest_of_config(store: ArtifactStore, config: str) -> Sequence[str]:
    """The ids of the newest releases of a release config, the newest first.

    Raises:
        Transient: The store cannot be read now.
    """
    known, _ = store.read_as(_name(config), _Newest, hint=_DAMAGED)
    return tuple(known.resolved) if known else ()


def _name(config: str) -> str:
    return f"index/resolved/{config}.json"
