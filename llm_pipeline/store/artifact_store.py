"""The artifact store: immutable artifacts named by their content, and small documents changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import JsonValue

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.records import ArtifactRef, Frozen

if TYPE_CHECKING:
    from llm_pipeline.store.manifest import Difference, Manifest
    from llm_pipeline.store.provenance import Provenance
    from llm_pipeline.store.signing import Signatures


class Conflict(Transient):
    """A document was changed by another process since it was read."""


@dataclass(frozen=True)
class Document:
    """A small JSON document and the revision it was read at.

    Attributes:
        signature: Of its name and value, if whoever wrote it signed it; reading it verifies nothing.
    """

    value: dict[str, JsonValue]
    revision: str
    signature: str | None = None


@dataclass(frozen=True)
class StoredArtifact:
    """A complete artifact as it lies in the store."""

    ref: ArtifactRef
    published_at: datetime


class Leftover(Frozen):
    """What an interrupted publication left behind: no artifact, and of no use except to resume it.

    Attributes:
        name: For `remove_leftover`.
        bytes: How much space it takes; 0 when that is not known.
        changed_at: When it was last added to.
    """

    name: str
    bytes: int
    changed_at: datetime


class ArtifactStore(Protocol):
    """The port of artifact stores: artifacts by their content, documents by compare-and-swap.

    Layout, the same everywhere: `artifacts/<kind>/<digest>/`, `stages/<key>.json`, `releases/<release id>/`,
    `claims/<organisation>/<name>.json`, `places/<place>.json`, `leases/<name>.json`.
    """

    uri: str
    signatures: Signatures

    def publish(
        self, kind: str, directory: Path, provenance: Provenance | None = None, *, consume: bool = False
    ) -> ArtifactRef:
        """Make a directory an artifact: files first, manifest and signature next, completion marker last.

        The digest is over the files' paths, sizes and hashes, so equal content has one name, whoever made it.
        Interrupted anywhere, the artifact does not exist, and the same call goes on. One that is there is renewed.

        Args:
            kind: The artifact's kind.
            directory: Its files.
            provenance: Where they came from.
            consume: Whether nobody needs the directory any more once it is published: then a store may move it, by
                one rename at the end.

        Raises:
            IntegrityError: The directory holds a symbolic link or nothing at all, or changed meanwhile.
            Transient: The store cannot take it now (a full disk, a lost connection).
        """

    def fetch(self, ref: ArtifactRef) -> Path:
        """A local, read-only directory with the artifact's files, verified against its manifest and signature.

        A damaged artifact does not stay complete: the next run that needs it makes it again.

        Raises:
            IntegrityError: The artifact is missing, incomplete or damaged; the message lists the differences.
        """

    def verify(self, ref: ArtifactRef) -> Sequence[Difference]:
        """How the artifact differs from its manifest and signature; empty when it is whole. Reads every byte."""

    def check(self, ref: ArtifactRef) -> Sequence[Difference]:
        """As `verify`, as far as can be told without transferring the files: on a local disk it is the same."""

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """What the artifact holds and where it came from.

        Raises:
            IntegrityError: The artifact is missing or incomplete, or its manifest damaged.
        """

    def provenance(self, ref: ArtifactRef) -> Provenance:
        """Where the artifact came from, as it was signed where signatures are required. No file of it is read.

        Raises:
            IntegrityError: As `manifest`, or the artifact is not signed as it must be.
        """

    def exists(self, ref: ArtifactRef) -> bool:
        """Whether the artifact is there and marked complete (its bytes are not read)."""

    def artifacts(self) -> Iterator[StoredArtifact]:
        """All complete artifacts, in no order.

        Raises:
            Transient: Some of it cannot be listed.
        """

    def renew(self, ref: ArtifactRef) -> bool:
        """Have an artifact count as published now, so that a retention leaves it alone; False if there is none.

        Whoever is about to name an artifact that another release has made does so.
        """

    def remove(self, ref: ArtifactRef, *, published_before: datetime | None = None) -> bool:
        """Remove an artifact, its completion marker first; False if it was published, or renewed, since then."""

    def leftovers(self, older_than: timedelta) -> Sequence[Leftover]:
        """What interrupted publications left, and damaged artifacts that were put aside, if older than that."""

    def remove_leftover(self, leftover: Leftover) -> None:
        """Remove it, if there is one."""

    def read_document(self, name: str) -> Document | None:
        """The document of that name (`places/...`), or None."""

    def write_document(
        self, name: str, value: Mapping[str, JsonValue], expect: str | None, signature: str | None = None
    ) -> str:
        """Write a document if its revision is still `expect` (None: if it does not exist); returns the new revision.

        A signature is kept beside the value; nothing is signed here.

        Raises:
            Conflict: Somebody else wrote it first.
        """

    def delete_document(self, name: str) -> None:
        """Remove a document, if there is one."""

    def list_documents(self, prefix: str) -> Sequence[str]:
        """Names of the documents below a prefix, sorted.

        Raises:
            Transient: Some of it cannot be listed.
            IntegrityError: Something there cannot be a document.
        """

    def write_file(self, name: str, data: bytes) -> None:
        """Write a mutable file for people (a report), atomically."""

    def read_file(self, name: str) -> bytes:
        """Read a file that `write_file` wrote.

        Raises:
            FileNotFoundError: There is none.
        """
