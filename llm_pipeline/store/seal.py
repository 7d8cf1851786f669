"""The store's own files of an artifact: manifest, signature, and last the completion marker that seals both.

Several processes may publish one artifact at once. Whoever writes a manifest first wins, the others adopt it if it is
valid; every write is conditional on what was read, and a publisher ends only when it has read the whole seal back.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.store.blobs import Blob, Blobs, Changed, back_off
from llm_pipeline.store.documents import checked_name
from llm_pipeline.store.manifest import COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE, Difference, Manifest
from llm_pipeline.store.signing import Signatures

_ATTEMPTS = 8


class Seal(Frozen):
    """The completion marker: what the artifact was when it was published.

    Attributes:
        written: Tells it from the one before; a marker that is written anew counts as published now.
    """

    manifest_sha256: str
    signature_sha256: str | None = None
    written: str = ""

    def to_json(self) -> bytes:
        """A marker to write now."""
        return self.model_copy(update={"written": uuid.uuid4().hex}).model_dump_json().encode()


@dataclass(frozen=True)
class Statement:
    """What a publisher says of an artifact: the content of its manifest's file, and its signature if it signs."""

    manifest: bytes
    signature: bytes | None

    @property
    def seal(self) -> Seal:
        """The marker for them."""
        signed = None if self.signature is None else sha256_bytes(self.signature)
        return Seal(manifest_sha256=sha256_bytes(self.manifest), signature_sha256=signed)


@dataclass(frozen=True)
class Opened:
    """The store's own files of an artifact, as read.

    Attributes:
        ref: The artifact.
        blobs: Those that are there, by name.
        manifest: The manifest, or what is wrong with marker or manifest.
    """

    ref: ArtifactRef
    blobs: Mapping[str, Blob]
    manifest: Manifest | Difference

    @property
    def files(self) -> dict[str, bytes]:
        """Their content by name."""
        return {name: blob.data for name, blob in self.blobs.items()}


def directory_of(ref: ArtifactRef) -> str:
    """Where an artifact's files are."""
    return checked_name(f"artifacts/{ref.kind}/{ref.digest}")


class Seals:
    """Reads and writes the store's own files of artifacts."""

    def __init__(self, blobs: Blobs, signatures: Signatures) -> None:
        self._blobs = blobs
        self._signatures = signatures

    def open(self, ref: ArtifactRef) -> Opened:
        """Read them, the marker first: what it seals was there before it."""
        names = (COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE)
        read = {name: self._blobs.get(f"{directory_of(ref)}/{name}") for name in names}
        blobs = {name: blob for name, blob in read.items() if blob is not None}
        return Opened(ref, blobs, _sealed(ref, {name: blob.data for name, blob in blobs.items()}))

    def problems(self, opened: Opened) -> list[Difference]:
        """What is wrong with marker, manifest or signature."""
        if isinstance(opened.manifest, Difference):
            return [opened.manifest]
        return self._signatures.problems(opened.manifest, opened.files[MANIFEST_FILE], opened.files.get(SIGNATURE_FILE))

    def break_marker(self, opened: Opened) -> None:
        """Make an artifact incomplete, unless somebody completed it anew since it was read."""
        if marker := opened.blobs.get(COMPLETE_FILE):
            with suppress(Changed):
                self._blobs.delete(f"{directory_of(opened.ref)}/{COMPLETE_FILE}", marker.revision)

    def renew(self, ref: ArtifactRef) -> bool:
        """Write the marker anew; False if there is none."""
        name = f"{directory_of(ref)}/{COMPLETE_FILE}"
        marker = self._blobs.get(name)
        if marker is None:
            return False
        try:
            self._blobs.put(name, Seal.model_validate_json(marker.data).to_json(), marker.revision)
        except ValidationError:  # it is damaged: whoever reads the artifact finds that
            return True
        except Changed:
            return self._blobs.get(name) is not None
        return True

    def sign(self, manifest: Manifest) -> Statement:
        """A publisher's own statement of what it publishes.

        Raises:
            ConfigError: It must be signed, and cannot be.
        """
        content = manifest.to_json()
        return Statement(content, self._signatures.sign(manifest, content))

    def seal(self, ref: ArtifactRef, own: Statement) -> None:
        """Complete an artifact whose files are all there.

        Raises:
            Transient: Others keep writing to it.
        """
        for attempt in range(_ATTEMPTS):
            opened = self.open(ref)
            if not self.problems(opened):
                return
            if attempt:
                back_off(attempt)
            try:
                self._write(opened, self._adopted(opened) or own)
            except Changed:
                continue
        where = self._blobs.address(directory_of(ref))
        raise Transient("others keep changing an artifact", where=where, hint="run it again")

    def _adopted(self, opened: Opened) -> Statement | None:
        """The statement of another publisher, if it will do."""
        content, signature = opened.files.get(MANIFEST_FILE), opened.files.get(SIGNATURE_FILE)
        manifest = _parsed(opened.ref, content)
        if content is None or isinstance(manifest, Difference):
            return None
        fits = not self._signatures.problems(manifest, content, signature)
        return Statement(content, signature) if fits else None

    def _write(self, opened: Opened, statement: Statement) -> None:
        self.break_marker(opened)  # what it seals is about to change
        directory = directory_of(opened.ref)
        for name, wanted in ((MANIFEST_FILE, statement.manifest), (SIGNATURE_FILE, statement.signature)):
            there = opened.blobs.get(name)
            if wanted is None and there:
                self._blobs.delete(f"{directory}/{name}", there.revision)
            elif wanted is not None and (there is None or there.data != wanted):
                self._blobs.put(f"{directory}/{name}", wanted, there.revision if there else None)
        self._blobs.put(f"{directory}/{COMPLETE_FILE}", statement.seal.to_json(), None)


def _sealed(ref: ArtifactRef, files: Mapping[str, bytes]) -> Manifest | Difference:
    """The manifest that a marker seals, or what is wrong with these files."""
    marker = files.get(COMPLETE_FILE)
    if marker is None:
        return Difference(COMPLETE_FILE, "missing")
    if MANIFEST_FILE not in files:
        return Difference(MANIFEST_FILE, "missing")
    try:
        seal = Seal.model_validate_json(marker)
    except ValidationError:
        return Difference(COMPLETE_FILE, "not a completion marker")
    for name, sealed in ((MANIFEST_FILE, seal.manifest_sha256), (SIGNATURE_FILE, seal.signature_sha256)):
        content = files.get(name)
        if sealed != (None if content is None else sha256_bytes(content)):
            return Difference(name, "added, removed or changed since the artifact was completed")
    return _parsed(ref, files[MANIFEST_FILE])


def _parsed(ref: ArtifactRef, content: bytes | None) -> Manifest | Difference:
    try:
        manifest = Manifest.from_json(content or b"")
    except IntegrityError as error:
        return Difference(MANIFEST_FILE, error.message)
    return manifest if manifest.ref == ref else Difference(MANIFEST_FILE, f"is of {manifest.ref}, not {ref}")
