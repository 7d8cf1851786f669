"""The stream of events of a store: numbered, append-only, in documents of a few hundred events each.

    append(store, events)               # by whoever runs or watches a release; the same fact is taken once
    for event in read(store, after=17): # what comes behind the last one that the reader has seen

Two who append at once are told apart by compare-and-swap. The oldest documents go when there are too many. A
damaged one is logged and left as it is: its events are lost, and the stream goes on in the next.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.notifications.event import Event
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.documents import understood

EVENTS_A_DOCUMENT = 200
DOCUMENTS_KEPT = 50

log = get_logger(__name__)

_FOLDER = "events"
_TRIES = 50


class _Part(Frozen):
    """One document of the stream."""

    events: tuple[Event, ...] = ()


def append(store: ArtifactStore, events: Sequence[Event]) -> int:
    """Append events whose id is not among the newest of the stream; returns how many those were.

    Raises:
        Conflict: Others append faster than this process can.
    """
    added = 0
    for _ in range(_TRIES):
        index = _newest(store)
        part, revision = _part(store, index)
        before, _ = _part(store, index - 1) if index else (None, None)
        known = {event.id for one in (before, part) if one for event in one.events}
        new = list({event.id: event for event in events if event.id not in known}.values())
        if not new:
            return added
        if part is None or len(part.events) == EVENTS_A_DOCUMENT:
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
    """The events behind a number, oldest first; those that are gone or damaged by now are left out."""
    index = after // EVENTS_A_DOCUMENT
    while True:
        part, revision = _part(store, index)
        if part is None or revision is None:
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


def _part(store: ArtifactStore, index: int) -> tuple[_Part | None, str | None]:
    """A document of the stream and its revision; an empty one and None where there is none, twice None if damaged."""
    name = _name(index)
    try:
        document = store.read_document(name)
        part = understood(_Part, document.value, name) if document else _Part()
    except IntegrityError as error:
        log.warning(f"{name} is damaged, its events are lost", reason=str(error))
        return None, None
    return part, document.revision if document else None
