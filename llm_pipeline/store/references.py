"""References: what a user types to name one thing in a store.

| written | names |
|---|---|
| `demo-0a1b2c3d-9f8e7d6c`, or the beginning of it | a release |
| `checkpoint/0a1b2c`, or `0a1b2c` alone (six digits at least) | an artifact |
| `production:org/model/target`, `previous:org/model/target` | what a pointer points at |

A reference that fits nothing, or more than one thing, is an error that lists what there is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import DamagedDocument
from llm_pipeline.store.place_state import PlaceState, Pointer, readable_places

PointerName = Literal["production", "previous"]

_SHORTEST_DIGEST = 6
_SHOWN_CANDIDATES = 8
_DIGEST = re.compile(r"[0-9a-f]+")
_RELEASE_DOCUMENT_PARTS = 3


@dataclass(frozen=True)
class ReleaseReference:
    """A release, by its whole id."""

    release_id: str

    def __str__(self) -> str:
        return self.release_id


@dataclass(frozen=True)
class PointerReference:
    """A pointer, and what it pointed at when it was read."""

    name: PointerName
    model_id: str
    target: str
    pointer: Pointer

    def __str__(self) -> str:
        return f"{self.name}:{self.model_id}/{self.target}"


Reference = ReleaseReference | ArtifactRef | PointerReference


def release_ids(store: ArtifactStore) -> list[str]:
    """The releases that have a record."""
    names = [PurePosixPath(name).parts for name in store.list_documents("releases")]
    return [parts[1] for parts in names if len(parts) == _RELEASE_DOCUMENT_PARTS and parts[2] == "release.json"]


def model_of_release(store: ArtifactStore, release_id: str) -> str | None:
    """The model of a release; None if the store has no record of it that says so."""
    document = store.read_document(f"releases/{release_id}/release.json") if release_id else None
    model = document.value.get("model") if document else None
    found = model.get("id") if isinstance(model, dict) else None
    return found if isinstance(found, str) else None


def pointers_of(place: str, state: PlaceState) -> Iterator[PointerReference]:
    """Those of a place that point at anything."""
    if state.production is not None:
        yield PointerReference("production", state.model_id, place, state.production)
    if state.previous is not None:
        yield PointerReference("previous", state.previous_model, place, state.previous)


def all_pointers(store: ArtifactStore) -> list[PointerReference]:
    """The pointers of every place.

    Raises:
        IntegrityError: The document of a place is damaged.
        Transient: One cannot be read.
    """
    found, damaged = readable_pointers(store)
    if damaged:
        raise damaged[0].error
    return found


def readable_pointers(store: ArtifactStore) -> tuple[list[PointerReference], list[DamagedDocument]]:
    """All pointers that can be read, and the documents that cannot.

    Raises:
        Transient: The documents cannot even be listed.
    """
    places, damaged = readable_places(store)
    return [pointer for place, state in places.items() for pointer in pointers_of(place, state)], damaged


def resolve_reference(store: ArtifactStore, text: str) -> Reference:
    """Find what a reference names.

    Raises:
        ConfigError: It names nothing, or more than one thing; the error lists what there is.
    """
    which, colon, place = text.partition(":")
    if colon:
        return _pointer(store, which, place)
    kind, slash, digest = text.rpartition("/")
    found = _artifacts(store, digest, kind) if slash else _by_prefix(store, text)
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{text!r} fits {_listed(found)}", hint="give more of its name")
    raise _unknown(store, text)


def _pointer(store: ArtifactStore, which: str, place: str) -> PointerReference:
    known, damaged = readable_pointers(store)
    for reference in known:
        if str(reference) == f"{which}:{place}":
            return reference
    if damaged:  # it may be one of them
        raise damaged[0].error
    hint = f"there is {_listed(known)}" if known else "nothing is in production; write production:org/model/target"
    raise ConfigError(f"no pointer {which}:{place}", where=store.uri, hint=hint)


def _by_prefix(store: ArtifactStore, text: str) -> list[Reference]:
    releases = [ReleaseReference(name) for name in release_ids(store) if name.startswith(text)]
    if exact := [release for release in releases if release.release_id == text]:
        return [*exact]
    return [*releases, *_artifacts(store, text)]


def _artifacts(store: ArtifactStore, prefix: str, kind: str | None = None) -> list[Reference]:
    if not _is_digest(prefix):
        return []
    refs = sorted((stored.ref for stored in store.artifacts()), key=lambda ref: (ref.kind, ref.digest))
    return [ref for ref in refs if ref.digest.startswith(prefix) and kind in (None, ref.kind)]


def _is_digest(text: str) -> bool:
    return len(text) >= _SHORTEST_DIGEST and _DIGEST.fullmatch(text) is not None


def _unknown(store: ArtifactStore, text: str) -> ConfigError:
    releases = release_ids(store)
    artifacts = [str(stored.ref) for stored in store.artifacts()]
    close = difflib.get_close_matches(text, releases + artifacts, n=3, cutoff=0.5)
    if "/" in text and not close:
        close = sorted(artifacts)[:_SHOWN_CANDIDATES]
    known = close or sorted(releases)[:_SHOWN_CANDIDATES]
    hint = f"there is {', '.join(known)}" if known else "the store is empty"
    if _DIGEST.fullmatch(text.rpartition("/")[2]) and not _is_digest(text.rpartition("/")[2]):
        hint = f"give at least {_SHORTEST_DIGEST} digits of a digest; {hint}"
    return ConfigError(f"no release or artifact {text!r}", where=store.uri, hint=hint)


def _listed(found: Sequence[Reference]) -> str:
    names = [str(reference) for reference in found[:_SHOWN_CANDIDATES]]
    more = len(found) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def release_of(reference: Reference) -> str:
    """The release that a reference names, itself or through a pointer.

    Raises:
        ConfigError: It names something else.
    """
    match reference:
        case ReleaseReference(release_id):
            return release_id
        case PointerReference():
            return reference.pointer.release_id
        case _:
            raise ConfigError(f"{reference} is not a release", hint="`llm-pipeline ls releases` lists them")
