"""The artifact store: immutable artifacts named by their content, and small documents changed by compare-and-swap.

Layout, the same everywhere: `artifacts/<kind>/<digest>/`, `stages/<key>.json`, `releases/<release id>/`,
`claims/<organisation>/<name>.json`, `places/<place>.json`, `leases/<name>.json`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.store import Signing
from llm_pipeline.store.blobs import Blobs, Changed, Leftover, Listed, LocalFile, in_parallel
from llm_pipeline.store.cache import Cache
from llm_pipeline.store.documents import Conflict, Document, Documents
from llm_pipeline.store.file_blobs import disk_errors
from llm_pipeline.store.manifest import (
    COMPLETE_FILE,
    Difference,
    FileState,
    Manifest,
    ManifestFile,
    differences,
    files_of,
    inventory,
    listing_differences,
    regular_files,
    require_unchanged,
)
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.seal import Opened, Seals, directory_of
from llm_pipeline.store.signing import Signatures

__all__ = ["ArtifactStore", "Conflict", "Document", "Leftover", "StoredArtifact"]

log = get_logger(__name__)

_ARTIFACTS = "artifacts"


@dataclass(frozen=True)
class StoredArtifact:
    """A complete artifact as it lies in the store."""

    ref: ArtifactRef
    published_at: datetime


class ArtifactStore(Documents):
    """Artifacts by their content, documents by compare-and-swap, in whatever keeps blobs.

    Args:
        uri: Where it is.
        blobs: What it stands on.
        signing: Signatures of artifacts; None for no signatures.
        cache: Local copies, where artifacts cannot be read in place.
    """

    def __init__(self, uri: str, blobs: Blobs, signing: Signing | None, cache: Cache | None = None) -> None:
        super().__init__(blobs)
        self.uri = uri
        self.signatures = Signatures(signing)
        self._seals = Seals(blobs, self.signatures)
        self._cache = cache

    def publish(
        self, kind: str, directory: Path, provenance: Provenance | None = None, *, consume: bool = False
    ) -> ArtifactRef:
        """Make a directory an artifact: files first, manifest and signature next, completion marker last.

        The digest is over the files' paths, sizes and hashes, so equal content has one name, whoever made it.
        Interrupted anywhere, the artifact does not exist, and the same call goes on with the files that are there. One
        that is there is renewed.

        Args:
            kind: The artifact's kind.
            directory: Its files.
            provenance: Where they came from.
            consume: Whether nobody needs the directory any more once it is published: then it is removed, and its
                files may become the store's own.

        Raises:
            IntegrityError: The directory holds a symbolic link or nothing at all, or changed meanwhile.
            ConfigError: It must be signed, and cannot be.
            Transient: The store cannot take it now (a full disk, a lost connection).
        """
        with disk_errors(f"cannot publish {directory.name} as {kind}"):
            before = regular_files(directory)
            manifest = Manifest(kind=kind, files=inventory(directory, before), provenance=provenance or Provenance())
            opened = self._seals.open(manifest.ref)
            if self._seals.problems(opened) or self.check(manifest.ref) or not self.renew(manifest.ref):
                self._write(manifest, directory, before, opened, link=consume)
            if consume:
                shutil.rmtree(directory)
        return manifest.ref

    def fetch(self, ref: ArtifactRef) -> Path:
        """A local, read-only directory with the artifact's files, verified against its manifest and signature.

        A damaged artifact does not stay complete: the next run that needs it makes it again.

        Raises:
            ConfigError: It must be copied, and there is no place for that.
            IntegrityError: The artifact is missing, incomplete or damaged; the message lists the differences.
            Transient: The store gives no answer, or the disk is full.
        """
        name, opened = directory_of(ref), self._seals.open(ref)
        problems = self._seals.problems(opened)
        if isinstance(opened.manifest, Difference):
            raise self._damaged(opened, problems)
        if problems:
            raise self._not_whole(ref, problems)
        if self._blobs.root is not None:
            directory = self._blobs.root / name
            damage: Sequence[Difference] = differences(self._blobs, name, opened.manifest, self._blobs.sha256)
        elif self._cache is not None:
            directory = self._cache.directory(name)
            damage = self._cache.get(name, opened.manifest, opened.files)
        else:
            hint = "set store.cache to a directory"
            raise ConfigError("artifacts in S3 need a local cache", where=self.uri, hint=hint)
        if damage:
            raise self._damaged(opened, damage)
        return directory

    def verify(self, ref: ArtifactRef) -> Sequence[Difference]:
        """How the artifact differs from its manifest and signature; empty when it is whole. Reads every byte."""
        return self._differences(ref, self._blobs.sha256)

    def check(self, ref: ArtifactRef) -> Sequence[Difference]:
        """As `verify`, as far as can be told without transferring the files: on a local disk it is the same."""
        return self._differences(ref, self._blobs.stated_sha256)

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """What the artifact holds and where it came from.

        Raises:
            IntegrityError: The artifact is missing or incomplete, or its manifest damaged.
        """
        opened = self._seals.open(ref)
        if isinstance(opened.manifest, Difference):
            raise self._not_whole(ref, [opened.manifest])
        return opened.manifest

    def exists(self, ref: ArtifactRef) -> bool:
        """Whether the artifact is there and marked complete (its bytes are not read)."""
        return self._blobs.get(f"{directory_of(ref)}/{COMPLETE_FILE}") is not None

    def artifacts(self) -> Iterator[StoredArtifact]:
        """All complete artifacts, in no order.

        Raises:
            Transient: Some of it cannot be listed.
        """
        for name, files in self._by_directory():
            if marker := files.get(COMPLETE_FILE):
                _, kind, digest = name.split("/")
                yield StoredArtifact(ArtifactRef(kind=kind, digest=digest), marker.changed_at)

    def renew(self, ref: ArtifactRef) -> bool:
        """Have an artifact count as published now, so that a retention leaves it alone; False if there is none.

        Whoever is about to name an artifact that another release has made does so.
        """
        return self._seals.renew(ref)

    def remove(self, ref: ArtifactRef, *, published_before: datetime | None = None) -> bool:
        """Remove an artifact, its completion marker first; False if it was published, or renewed, since then."""
        name = directory_of(ref)
        marker = self._blobs.get(f"{name}/{COMPLETE_FILE}")
        if marker:
            if published_before and marker.changed_at > published_before:
                return False
            try:
                self._blobs.delete(f"{name}/{COMPLETE_FILE}", marker.revision)
            except Changed:
                return False
        self._blobs.delete_all([item.name for item in self._blobs.list(name)])
        return True

    def leftovers(self, older_than: timedelta) -> Sequence[Leftover]:
        """Transfers that did not end, and files of artifacts that are not complete, if older than that."""
        limit = datetime.now(UTC) - older_than
        incomplete = [
            Leftover(
                name=name,
                bytes=sum(file.size for file in files.values()),
                changed_at=max(file.changed_at for file in files.values()),
            )
            for name, files in self._by_directory()
            if COMPLETE_FILE not in files
        ]
        return [one for one in (*self._blobs.unfinished(), *incomplete) if one.changed_at <= limit]

    def remove_leftover(self, leftover: Leftover) -> None:
        """Remove it, if there is one, and its artifact was not completed meanwhile."""
        if leftover.transfer:
            self._blobs.drop(leftover)
        elif self._blobs.get(f"{leftover.name}/{COMPLETE_FILE}") is None:
            self._blobs.delete_all([item.name for item in self._blobs.list(leftover.name)])

    def _write(
        self, manifest: Manifest, directory: Path, before: Mapping[str, FileState], opened: Opened, *, link: bool
    ) -> None:
        ref, name = manifest.ref, directory_of(manifest.ref)
        statement = self._seals.sign(manifest)  # where it cannot be signed, that is known before hours of transfer
        self._seals.break_marker(opened)
        there = files_of(self._blobs, name)

        def stored(file: ManifestFile) -> bool:
            item = there.get(file.path)
            return item is not None and item.size == file.size and self._blobs.stated_sha256(item) == file.sha256

        held = in_parallel(stored, manifest.files)
        lacking = [file for file, is_there in zip(manifest.files, held, strict=True) if not is_there]
        files = {f"{name}/{file.path}": LocalFile(directory / file.path, file.sha256) for file in lacking}
        try:
            self._blobs.upload(files, link=link)
        finally:
            try:
                require_unchanged(directory, before)
            except IntegrityError:
                self._blobs.delete_all(list(files))
                raise
        extra = files_of(self._blobs, name).keys() - {file.path for file in manifest.files}
        self._blobs.delete_all([f"{name}/{path}" for path in extra])
        self._seals.seal(ref, statement)
        if lost := listing_differences(manifest, files_of(self._blobs, name)):
            self._seals.break_marker(self._seals.open(ref))
            hint = "a retention removed it as a leftover, or a lifecycle rule of the bucket; run it again"
            problem = f"{lost[0].path} of {ref} vanished while it was published"
            raise Transient(problem, where=self._blobs.address(name), hint=hint)

    def _differences(self, ref: ArtifactRef, sha256: Callable[[Listed], str | None]) -> Sequence[Difference]:
        opened = self._seals.open(ref)
        problems = self._seals.problems(opened)
        if isinstance(opened.manifest, Difference):
            return problems
        return [*problems, *differences(self._blobs, directory_of(ref), opened.manifest, sha256)]

    def _damaged(self, opened: Opened, found: Sequence[Difference]) -> IntegrityError:
        """The error for damage, after which the artifact is complete no more: the next run makes it again."""
        try:
            self._seals.break_marker(opened)
            log.warning("a damaged artifact is no longer marked complete", artifact=str(opened.ref))
        except PipelineError as error:  # a store mounted read-only: whoever may write will replace it
            log.warning("a damaged artifact stays marked complete", artifact=str(opened.ref), reason=str(error))
        return self._not_whole(opened.ref, found)

    def _not_whole(self, ref: ArtifactRef, found: Sequence[Difference]) -> IntegrityError:
        listing = "; ".join(f"{difference.path}: {difference.problem}" for difference in found[:5])
        hint = "run the release again: the stage that makes it will replace it"
        problem = f"artifact {ref} is not whole: {listing}"
        return IntegrityError(problem, where=self._blobs.address(directory_of(ref)), hint=hint)

    def _by_directory(self) -> Iterator[tuple[str, dict[str, Listed]]]:
        """All that lies below `artifacts/`, complete or not: the directory of each, and the files at their paths."""
        for parts, items in groupby(self._blobs.list(_ARTIFACTS), lambda item: item.name.split("/", 3)[:3]):
            name = "/".join(parts)
            files = {item.name.removeprefix(f"{name}/"): item for item in items}
            if name not in files:  # else it is a file that lies where a directory should
                yield name, files
