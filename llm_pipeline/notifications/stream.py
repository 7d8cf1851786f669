"""The stream of events of a store: numbered, append-only, in documents of a few hundred events each.

    append(store, events)               # by whoever runs or watches a release; the same fact is taken once
    for event in read(store, after=17): # what comes behind the last one that the reader has seen

Two who append at once are told apart by compare-and-swap. The oldest documents go when there are too many.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from llm_pipeline.base.records import Frozen
from llm_pipeline.notifications.event import Event
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood

EVENTS_A_DOCUMENT = 200
DOCUMENTS_KEPT = 50

_FOLDER = "events"
_TRIES = 50


class _Part(Frozen):
    """One document of the stream."""

    events: tuple[Event, ...] = ()


def append(store: ArtifactStore, events: Sequence[Event]) -> int:
    """Append events whose id is not among the newest of the stream; returns how many those were.

    Raises:
        IntegrityError: The newest document of the stream is damaged.
        Conflict: Others append faster than this process can.
    """
    added = 0
    for _ in range(_TRIES):
        index = _newest(store)
        part, revision = _part(store, index)
        before = _part(store, index - 1)[0].events if index else ()
        known = {event.id for event in (*before, *part.events)}
        new = list({event.id: event for event in events if event.id not in known}.values())
        if not new:
            return added
        if len(part.events) == EVENTS_A_DOCUMENT:
            index, part, revision = index + 1, _Part(), None
        taken = new[: EVENTS_A_DOCUMENT - len(part.events)]
        first = index * EVENTS_A_DOCUMENT + len(part.events) + 1
        numbered = tuple(event.model_copy(update={"number": first + at}) for at, event in enumerate(taken))
        try:
            value = _Part(events=(*part.events, *numbered)).model_dump(mode="json")
            store.write_document(_name(index), value, revision)
        except Conflict:
            time.sleep(random.uniform(0.0, 0.05))  # noqa: S311 - spreads writers, protects nothing
            continue
        added += len(numbered)
        if not part.events and index >= DOCUMENTS_KEPT:
            store.delete_document(_name(index - DOCUMENTS_KEPT))
        if len(taken) == len(new):
            return added
    raise Conflict("the stream of events changes faster than it can be written", where=f"{store.uri}/{_FOLDER}")


def read(store: ArtifactStore, after: int = 0) -> Iterator[Event]:
    """The events behind a number, oldest first; those that are gone by now are left out.

    Raises:
        IntegrityError: A document of the stream is damaged.
    """
    index = after // EVENTS_A_DOCUMENT
    while True:
        part, revision = _part(store, index)
        if revision is None:
            later = [number for number in _indexes(store) if number > index]
            if not later:
                return
            index = min(later)
            continue
        yield from (event for event in part.events if event.number > after)
        if len(part.events) < EVENTS_A_DOCUMENT:
            return
        index += 1


def _name(index: int) -> str:
    return f"{_FOLDER}/{index:08d}.json"


def _indexes(store: ArtifactStore) -> list[int]:
    stems = [PurePosixPath(name).stem for name in store.list_documents(_FOLDER)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _newest(store: ArtifactStore) -> int:
    return max(_indexes(store), default=0)


def _part(store: ArtifactStore, index: int) -> tuple[_Part, str | None]:
    """A document of the stream and its revision; an empty one and None where there is none."""
    name = _name(index)
    document = store.read_document(name)
    if document is None:
        return _Part(), None
    return understood(_Part, document.value, name, hint="remove this document: its events are lost"), document.revision
