"""The artifact store: immutable artifacts named by their content, and small documents changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from llm_pipeline.errors import Transient
from llm_pipeline.stages.contract import ArtifactRef


class Conflict(Transient):
    """A document was changed by somebody else since it was read."""


@dataclass(frozen=True)
class Document:
    """A small JSON document and the revision it was read at."""

    value: dict[str, JsonValue]
    revision: str


@dataclass(frozen=True)
class Difference:
    """One way in which an artifact is not what its manifest says."""

    path: str
    problem: str


class ArtifactStore(Protocol):
    """What every store offers.

    Layout, the same everywhere: `artifacts/<kind>/<digest>/`, `stages/<key>.json`, `releases/<release id>/`,
    `pointers/<model>/<target>.json`, `leases/<name>.json`.
    """

    uri: str

    def publish(self, kind: str, directory: Path, provenance: Mapping[str, JsonValue]) -> ArtifactRef:
        """Make a directory an artifact: files first, manifest next, completion marker last.

        The digest is over the files' paths, sizes and hashes, so equal content has one name, whoever made it.

        Raises:
            IntegrityError: The directory holds a symbolic link or nothing at all.
            Transient: The store cannot take it now (a full disk, a lost connection).
        """

    def fetch(self, ref: ArtifactRef) -> Path:
        """A local, read-only directory with the artifact's files, verified against its manifest.

        Raises:
            IntegrityError: The artifact is missing, incomplete or damaged; the message lists the differences.
        """

    def verify(self, ref: ArtifactRef) -> Sequence[Difference]:
        """How the artifact differs from its manifest; empty when it is whole."""

    def exists(self, ref: ArtifactRef) -> bool:
        """Whether the artifact is there and marked complete (its bytes are not read)."""

    def size(self, ref: ArtifactRef) -> int:
        """Bytes of the artifact's files."""

    def read_document(self, name: str) -> Document | None:
        """The document of that name (`pointers/...`), or None."""

    def write_document(self, name: str, value: Mapping[str, JsonValue], expect: str | None) -> str:
        """Write a document if its revision is still `expect` (None: if it does not exist); returns the new revision.

        Raises:
            Conflict: Somebody else wrote it first.
        """

    def delete_document(self, name: str) -> None:
        """Remove a document; none there is fine."""

    def list_documents(self, prefix: str) -> Sequence[str]:
        """Names of the documents below a prefix, sorted."""

    def write_file(self, name: str, data: bytes) -> None:
        """Write a mutable file for people (a report), atomically."""

    def read_file(self, name: str) -> bytes:
        """Read such a file.

        Raises:
            FileNotFoundError: There is none.
        """
