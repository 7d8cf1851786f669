"""Condemned artifacts: found to be of use to nobody, and removed when that is still so after the grace period.

A condemnation is a document beside the artifact, `condemned/<kind>/<digest>.json`, changed by compare-and-swap. It is
how the retention and those who publish agree, without a lock, about an artifact that is old and of use again:

- Who publishes spares what came out (`publish_spared`) before naming it in any document. That restarts the period.
- The retention reads the condemnations first, then all that names artifacts, and then turns a condemnation that is old
  enough into a removal by compare-and-swap: one that was spared meanwhile has another revision.
- Who finds a removal under way waits for its end and publishes again.

So in every order of these steps the artifact either stays or is made again before anybody names it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict, Leftover
from llm_pipeline.store.documents import understood
from llm_pipeline.store.lease import lease_of
from llm_pipeline.store.provenance import Provenance

RETENTION_LEASE = "leases/retention.json"
"""Held by the one retention run that removes things."""

_CONDEMNED = "condemned"
_POLL_SECONDS = 0.5


class Condemnation(Frozen):
    """Why an artifact may be removed soon.

    Attributes:
        since: When it was last of use to anybody, as far as is known.
        removing: Its removal has begun: it must not be used any more.
    """

    since: datetime
    removing: bool = False


@dataclass(frozen=True)
class Condemned:
    """A condemnation and the revision it was read at."""

    condemnation: Condemnation
    revision: str


def read_condemned(store: ArtifactStore) -> dict[ArtifactRef, Condemned]:
    """Every condemned artifact, with its condemnation.

    Raises:
        IntegrityError: One cannot be understood.
    """
    found = {}
    for name in store.list_documents(_CONDEMNED):
        ref = ArtifactRef(kind=PurePosixPath(name).parent.name, digest=PurePosixPath(name).stem)
        if (condemned := _read(store, ref)) is not None:
            found[ref] = condemned
    return found


def condemn(store: ArtifactStore, ref: ArtifactRef, since: datetime) -> None:
    """Condemn an artifact; one that is condemned already stays so, since when it was."""
    with contextlib.suppress(Conflict):
        store.write_document(_name(ref), Condemnation(since=since).model_dump(mode="json"), None)


def pardon(store: ArtifactStore, ref: ArtifactRef) -> None:
    """Forget a condemnation: the artifact is of use again, or gone."""
    store.delete_document(_name(ref))


def remove_condemned(store: ArtifactStore, ref: ArtifactRef, condemned: Condemned) -> bool:
    """Remove an artifact, unless it was spared since its condemnation was read; returns whether it was removed."""
    begun = condemned.condemnation.model_copy(update={"removing": True})
    try:
        store.write_document(_name(ref), begun.model_dump(mode="json"), condemned.revision)
    except Conflict:
        return False
    _finish(store, ref)
    return True


def remove_unfinished(store: ArtifactStore, leftover: Leftover) -> None:
    """Remove a leftover. Files that a publication may count on again are removed as an artifact is.

    A publication that is gone on with later uses the files that are there. It seals them and then looks whether a
    removal is under way; the removal is written down first and leaves alone what is sealed then. So one sees the other.
    """
    ref = _unfinished(leftover)
    if ref is None:
        store.remove_leftover(leftover)
        return
    begun = Condemnation(since=leftover.changed_at, removing=True)
    with contextlib.suppress(Conflict):  # condemned already: a later run sees to it
        store.write_document(_name(ref), begun.model_dump(mode="json"), None)
        store.remove_leftover(leftover)
        store.delete_document(_name(ref))


def _unfinished(leftover: Leftover) -> ArtifactRef | None:
    """The artifact that a leftover has files of; None for one that only its maker uses."""
    artifacts, *name = leftover.name.split("/")
    if artifacts != "artifacts" or len(name) != 2:  # noqa: PLR2004 - kind and digest
        return None
    return ArtifactRef(kind=name[0], digest=name[1])


def spare(store: ArtifactStore, ref: ArtifactRef) -> bool:
    """Keep an artifact for one more grace period; False when it is being removed and must be published again."""
    while True:
        condemned = _read(store, ref)
        if condemned is None:
            return True
        if condemned.condemnation.removing:
            return False
        with contextlib.suppress(Conflict):
            renewed = Condemnation(since=datetime.now(UTC))
            store.write_document(_name(ref), renewed.model_dump(mode="json"), condemned.revision)
            return True


def publish_spared(
    store: ArtifactStore, kind: str, directory: Path, provenance: Provenance | None = None, *, consume: bool = False
) -> ArtifactRef:
    """Publish, and make sure that what was there already is not just being removed; see `ArtifactStore.publish`.

    Raises:
        IntegrityError: As `ArtifactStore.publish`.
        Transient: As `ArtifactStore.publish`; or the directory was consumed, and removed as what was there already.
    """
    while True:
        ref = store.publish(kind, directory, provenance, consume=consume)
        if spare(store, ref):
            return ref
        _await_removal(store, ref)
        if not directory.exists():  # it was moved to its place while the removal was under way
            if store.exists(ref):
                return ref
            raise Transient(
                f"{ref} was removed by the retention while it was published", hint="run it again: it is made anew"
            )


def _await_removal(store: ArtifactStore, ref: ArtifactRef) -> None:
    """Until the removal is over; one that was interrupted is finished here."""
    while not spare(store, ref):
        if _nobody_removes(store):
            _finish(store, ref)
        else:
            time.sleep(_POLL_SECONDS)


def _nobody_removes(store: ArtifactStore) -> bool:
    document = store.read_document(RETENTION_LEASE)
    return document is None or lease_of(document, RETENTION_LEASE).free


def _finish(store: ArtifactStore, ref: ArtifactRef) -> None:
    store.remove(ref)
    store.delete_document(_name(ref))


def _read(store: ArtifactStore, ref: ArtifactRef) -> Condemned | None:
    name = _name(ref)
    document = store.read_document(name)
    if document is None:
        return None
    hint = "remove this document: the artifact's grace period starts again"
    return Condemned(understood(Condemnation, document.value, name, hint=hint), document.revision)


def _name(ref: ArtifactRef) -> str:
    return f"{_CONDEMNED}/{ref.kind}/{ref.digest}.json"
