"""The store's own files of an artifact in S3: manifest, signature, and last the completion marker that seals both.

Several processes may publish one artifact at once. Whoever writes a manifest first wins, the others adopt it if it is
valid; every write is conditional on what was read, and a publisher ends only when it has read the whole seal back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.manifest import COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE, Difference, Manifest, Seal, Sealed
from llm_pipeline.store.s3_bucket import Bucket, back_off, revision_is
from llm_pipeline.store.s3_session import Changed
from llm_pipeline.store.signing import Signatures

_ATTEMPTS = 8


@dataclass(frozen=True)
class Statement:
    """What a publisher says of an artifact: the content of its manifest's file, and its signature if it signs."""

    ref: ArtifactRef
    content: bytes
    signature: bytes | None

    @property
    def seal(self) -> Seal:
        """The completion marker for them."""
        signed = None if self.signature is None else sha256_bytes(self.signature)
        return Seal(manifest_sha256=sha256_bytes(self.content), signature_sha256=signed)


@dataclass(frozen=True)
class Opened:
    """The store's own files of an artifact, as read.

    Attributes:
        directory: The artifact's name in the store.
        sealed: Their content.
        etags: Their revisions; those that are there.
        manifest: The manifest, if marker and manifest fit.
        broken: What is wrong with marker and manifest, if something is.
    """

    directory: str
    sealed: Sealed
    etags: Mapping[str, str]
    manifest: Manifest | None
    broken: Difference | None

    @property
    def files(self) -> dict[str, bytes]:
        """Those that are there, by name."""
        named = {
            MANIFEST_FILE: self.sealed.manifest,
            SIGNATURE_FILE: self.sealed.signature,
            COMPLETE_FILE: self.sealed.marker,
        }
        return {name: content for name, content in named.items() if content is not None}


class Seals:
    """Reads and writes the store's own files of artifacts."""

    def __init__(self, bucket: Bucket, signatures: Signatures) -> None:
        self._bucket = bucket
        self._signatures = signatures

    def open(self, ref: ArtifactRef, directory: str) -> Opened:
        """Read them, the marker first: what it seals was there before it."""
        read = {
            name: self._bucket.read(f"{directory}/{name}") for name in (COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE)
        }
        content = {name: found[0] if found else None for name, found in read.items()}
        sealed = Sealed(
            marker=content[COMPLETE_FILE], manifest=content[MANIFEST_FILE], signature=content[SIGNATURE_FILE]
        )
        opened = sealed.open(ref)
        return Opened(
            directory=directory,
            sealed=sealed,
            etags={name: found[1] for name, found in read.items() if found},
            manifest=opened if isinstance(opened, Manifest) else None,
            broken=opened if isinstance(opened, Difference) else None,
        )

    def problems(self, opened: Opened) -> list[Difference]:
        """What is wrong with marker, manifest or signature."""
        if opened.manifest is None or opened.sealed.manifest is None:
            return [opened.broken or Difference(MANIFEST_FILE, "missing")]
        return self._signatures.problems(opened.manifest, opened.sealed.manifest, opened.sealed.signature)

    def final(self, opened: Opened) -> bool:
        """Whether an artifact is sealed, and signed if it should be."""
        return not self.problems(opened)

    def break_marker(self, opened: Opened) -> None:
        """Make an artifact incomplete, unless somebody completed it anew since it was read."""
        if etag := opened.etags.get(COMPLETE_FILE):
            try:
                self._bucket.delete(f"{opened.directory}/{COMPLETE_FILE}", revision_is(etag))
            except Changed:
                return

    def sign(self, manifest: Manifest) -> Statement:
        """A publisher's own statement of what it publishes.

        Raises:
            ConfigError: It must be signed, and cannot be.
        """
        content = manifest.to_json()
        return Statement(manifest.ref, content, self._signatures.sign(manifest, content))

    def seal(self, own: Statement, directory: str) -> None:
        """Complete an artifact whose files are all there.

        Raises:
            Transient: Others keep writing to it.
        """
        for attempt in range(_ATTEMPTS):
            opened = self.open(own.ref, directory)
            if self.final(opened):
                return
            if attempt:
                back_off(attempt)
            try:
                self._write(opened, self._adopted(opened, own.ref) or own)
            except Changed:
                continue
        raise Transient("others keep changing an artifact", where=self._bucket.address(directory), hint="run it again")

    def _adopted(self, opened: Opened, ref: ArtifactRef) -> Statement | None:
        """The statement of another publisher, if it will do."""
        content, signature = opened.sealed.manifest, opened.sealed.signature
        if content is None:
            return None
        try:
            manifest = Manifest.from_json(content)
        except IntegrityError:
            return None
        fits = manifest.ref == ref and not self._signatures.problems(manifest, content, signature)
        return Statement(ref, content, signature) if fits else None

    def _write(self, opened: Opened, statement: Statement) -> None:
        self.break_marker(opened)  # what it seals is about to change
        self._replace(opened, MANIFEST_FILE, statement.content, opened.sealed.manifest)
        self._replace(opened, SIGNATURE_FILE, statement.signature, opened.sealed.signature)
        seal = statement.seal.model_dump_json().encode()
        self._bucket.put(f"{opened.directory}/{COMPLETE_FILE}", seal, revision_is(None))

    def _replace(self, opened: Opened, name: str, wanted: bytes | None, there: bytes | None) -> None:
        path, etag = f"{opened.directory}/{name}", opened.etags.get(name)
        if wanted == there:
            return
        if wanted is None:
            self._bucket.delete(path, revision_is(etag))
        else:
            self._bucket.put(path, wanted, revision_is(etag))
