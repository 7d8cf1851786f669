"""Marks that say which releases may have changed since the index of releases was written.

with changing(store, release_id):
    store.write_document(...)  # of the release

A mark is there before the change and stays until the index holds it, so a reader who finds no mark may take the index's
word. Each is a document of its own: writers do not wait for each other. A process that dies leaves its mark, and the
release is read from its records.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.artifact_store import Conflict

_MARKS = "index/changes"
_ABANDONED_SECONDS = 86_400
"""A mark of a change that began so long ago is of a process that is gone: every request to a store ends in minutes."""


@contextmanager
def changing(store: ArtifactStore, release_id: str) -> Iterator[None]:
    """Change a release's documents in the block.

    Raises:
        Transient: The store cannot be written now.
    """
    name = f"{int(time.time())}-{uuid.uuid4().hex[:12]}"
    begun, done = (f"{_MARKS}/{release_id}/{state}-{name}.json" for state in ("begun", "done"))
    store.write_document(begun, {}, None)
    try:
        yield
    except Conflict:  # nothing was written
        store.delete_document(begun)
        raise
    store.write_document(done, {}, None)
    store.delete_document(begun)


def changed_releases(store: ArtifactStore) -> dict[str, tuple[str, ...]]:
    """Names of the marks by release.

    Raises:
        Transient: They cannot be listed now.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in store.list_documents(_MARKS):
        release_id = name.split("/")[2]
        found[release_id] = (*found.get(release_id, ()), name)
    return found


def remove_marks(store: ArtifactStore, names: Sequence[str]) -> None:
    """Remove those whose change was made before they were listed; the index has to hold it by now."""
    for name in names:
        state, began, _ = name.rpartition("/")[2].split("-")
        if state == "done" or time.time() - float(began) > _ABANDONED_SECONDS:
            store.delete_document(name)
