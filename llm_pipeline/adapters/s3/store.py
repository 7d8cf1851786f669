"""The artifact store in S3, or behind another server's S3 API.

Keys are `<prefix>/artifacts/<kind>/<digest>/<path>` and `<prefix>/<document>`. It needs a server with conditional
writes (`If-None-Match`, `If-Match`): Amazon's since 2024, MinIO, Ceph.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path

from pydantic import JsonValue

from llm_pipeline.adapters.s3.adapter import BucketStore
from llm_pipeline.adapters.s3.cache import Cache
from llm_pipeline.adapters.s3.seal import Opened, Seals
from llm_pipeline.adapters.s3.transfers import (
    download,
    listing_differences,
    objects_of,
    stored_difference,
    streamed_difference,
    upload,
)
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.artifact_store import Conflict, Document, Leftover, StoredArtifact
from llm_pipeline.store.documents import checked_name, unwrapped
from llm_pipeline.store.manifest import (
    COMPLETE_FILE,
    MANIFEST_FILE,
    Difference,
    Manifest,
    ManifestFile,
    inventory,
    not_whole,
    regular_files,
)
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.s3_bucket import Bucket, S3Object, S3Upload, in_parallel, revision_is
from llm_pipeline.store.s3_session import Changed
from llm_pipeline.store.signing import Signatures, signed_by

log = get_logger(__name__)

_ARTIFACTS = "artifacts"
_UPLOAD_MARK = "?upload="


class S3Store:
    """Artifacts as objects below a prefix of a bucket; documents as objects that are replaced conditionally."""

    def __init__(self, config: BucketStore) -> None:
        self.uri = config.uri
        self._bucket = Bucket(config)
        self.signatures = Signatures(config.signing)
        self._seals = Seals(self._bucket, self.signatures)
        self._cache = Cache(Path(config.cache)) if config.cache else None

    def publish(
        self,
        kind: str,
        directory: Path,
        provenance: Provenance | None = None,
        *,
        consume: bool = False,  # noqa: ARG002 - a bucket takes nothing away
    ) -> ArtifactRef:
        """Publishes a directory; files that S3 holds already are not sent again, and the directory stays.

        Raises:
            IntegrityError: The directory holds a symbolic link or nothing at all, or changed meanwhile.
            Transient: S3 cannot take it now.
            ConfigError: It must be signed, and cannot be.
            Terminal: S3 refuses it: credentials, permissions, the bucket.
        """
        before = regular_files(directory)
        manifest = Manifest(kind=kind, files=inventory(directory), provenance=provenance or Provenance())
        ref, name = manifest.ref, _directory(manifest.ref)
        opened = self._seals.open(ref, name)
        if self._seals.final(opened) and not self.check(ref) and self.renew(ref):
            return ref
        statement = self._seals.sign(manifest)  # where it cannot be signed, that is known before hours of transfer
        self._seals.break_marker(opened)
        upload(self._bucket, name, directory, manifest.files)
        if changed := sorted(path for path, state in regular_files(directory).items() if before.get(path) != state):
            self._bucket.delete_all([f"{name}/{path}" for path in changed])
            raise IntegrityError(
                f"{changed[0]} changed while it was published",
                where=str(directory),
                hint="publish it again once nothing writes to it",
            )
        extra = objects_of(self._bucket, name).keys() - {file.path for file in manifest.files}
        self._bucket.delete_all([f"{name}/{path}" for path in sorted(extra)])
        self._seals.seal(statement, name)
        if lost := listing_differences(manifest, objects_of(self._bucket, name)):
            self._seals.break_marker(self._seals.open(ref, name))
            raise Transient(
                f"{lost[0].path} of {ref} vanished while it was published",
                where=self._bucket.address(name),
                hint="a retention removed it as a leftover, or a lifecycle rule of the bucket; run it again",
            )
        self._abort_uploads(name)
        return ref

    def fetch(self, ref: ArtifactRef) -> Path:
        """The local copy in `store.cache`, verified each time and made again if damaged.

        Raises:
            ConfigError: No cache is configured.
            IntegrityError: The artifact is missing, incomplete, damaged, or not signed as it must be.
            Transient: S3 gives no answer, or the disk is full.
        """
        if self._cache is None:
            raise ConfigError(
                "artifacts in S3 need a local cache", where=self.uri, hint="set store.cache to a directory"
            )
        opened = self._seals.open(ref, _directory(ref))
        if opened.manifest is None:
            raise self._damaged(ref, opened, self._seals.problems(opened))
        if unsigned := self._seals.problems(opened):
            raise self._not_whole(ref, unsigned)
        if damage := self._copied(self._cache, ref, opened, opened.manifest):
            raise self._damaged(ref, opened, damage)
        return self._cache.directory(ref)

    def verify(self, ref: ArtifactRef) -> Sequence[Difference]:
        """Verifies every byte; they stream through memory, without the disk."""
        return self._differences(ref, streamed_difference)

    def check(self, ref: ArtifactRef) -> Sequence[Difference]:
        """Compares sizes and the checksums that S3 stores."""
        return self._differences(ref, stored_difference)

    def manifest(self, ref: ArtifactRef) -> Manifest:
        opened = self._seals.open(ref, _directory(ref))
        if opened.manifest is None:
            raise self._not_whole(ref, self._seals.problems(opened))
        return opened.manifest

    def provenance(self, ref: ArtifactRef) -> Provenance:
        opened = self._seals.open(ref, _directory(ref))
        problems = self._seals.problems(opened)
        if opened.manifest is None or problems:
            raise self._not_whole(ref, problems)
        return opened.manifest.provenance

    def exists(self, ref: ArtifactRef) -> bool:
        return self._bucket.head(f"{_directory(ref)}/{COMPLETE_FILE}") is not None

    def artifacts(self) -> Iterator[StoredArtifact]:
        for ref, objects in self._by_artifact():
            for item in objects:
                if item.name == f"{_directory(ref)}/{COMPLETE_FILE}":
                    yield StoredArtifact(ref, item.changed_at)

    def renew(self, ref: ArtifactRef) -> bool:
        marker = f"{_directory(ref)}/{COMPLETE_FILE}"
        found = self._bucket.read(marker)
        if found is None:
            return False
        try:
            self._bucket.put(marker, found[0], revision_is(found[1]))
        except Changed:
            return self.exists(ref)
        return True

    def remove(self, ref: ArtifactRef, *, published_before: datetime | None = None) -> bool:
        name = _directory(ref)
        marker = self._bucket.head(f"{name}/{COMPLETE_FILE}") if published_before else None
        if marker and published_before and marker.item.changed_at > published_before:
            return False
        self._bucket.delete(f"{name}/{COMPLETE_FILE}")
        self._bucket.delete(f"{name}/{MANIFEST_FILE}")
        self._bucket.delete_all([item.name for item in self._bucket.list(f"{name}/")])
        self._abort_uploads(name)
        return True

    def leftovers(self, older_than: timedelta) -> Sequence[Leftover]:
        """Unfinished uploads, and files of artifacts that were never completed."""
        limit = datetime.now(UTC) - older_than
        uploads = [
            Leftover(name=f"{begun.name}{_UPLOAD_MARK}{begun.id}", bytes=0, changed_at=begun.begun_at)
            for begun in self._bucket.unfinished_uploads(f"{_ARTIFACTS}/")
            if begun.begun_at is not None
        ]
        found = [*uploads, *self._incomplete_artifacts()]
        return [leftover for leftover in found if leftover.changed_at < limit]

    def remove_leftover(self, leftover: Leftover) -> None:
        """Removes a leftover, unless its artifact was completed meanwhile."""
        name, _, upload_id = leftover.name.partition(_UPLOAD_MARK)
        if upload_id:
            self._bucket.abort_upload(S3Upload(name, upload_id))
        elif self._bucket.head(f"{name}/{COMPLETE_FILE}") is None:
            self._bucket.delete_all([item.name for item in self._bucket.list(f"{name}/")])

    def read_document(self, name: str) -> Document | None:
        found = self._read_document(name)
        return found.document if found else None

    def write_document(
        self, name: str, value: Mapping[str, JsonValue], expect: str | None, signature: str | None = None
    ) -> str:
        """Writes a document; its revision is the object's ETag.

        When the answer to a write is lost, the document itself tells whether it was applied: by the write's nonce.
        """
        nonce = uuid.uuid4().hex  # two equal values are two revisions
        document = {"nonce": nonce, "value": dict(value)} | signed_by(signature)
        data = json.dumps(document, allow_nan=False).encode()
        try:
            return self._bucket.put(checked_name(name), data, revision_is(expect))
        except Transient as error:
            current = self._read_document(name)
            if current is not None and current.nonce == nonce:
                return current.document.revision
            if isinstance(error, Changed):
                message = f"{name} was changed by another process"
                raise Conflict(message, where=error.where, hint="read it again and retry") from error
            raise

    def delete_document(self, name: str) -> None:
        self._bucket.delete(checked_name(name))

    def list_documents(self, prefix: str) -> Sequence[str]:
        below = checked_name(prefix.rstrip("/")) + "/"
        if below.startswith(f"{_ARTIFACTS}/"):
            return []
        return [item.name for item in self._bucket.list(below) if item.name.endswith(".json")]

    def write_file(self, name: str, data: bytes) -> None:
        self._bucket.put(checked_name(name), data)

    def read_file(self, name: str) -> bytes:
        found = self._bucket.read(checked_name(name))
        if found is None:
            raise FileNotFoundError(self._bucket.address(name))
        return found[0]

    def _abort_uploads(self, directory: str) -> None:
        """Drop uploads that nobody needs: of a killed process, or begun by a request whose answer was lost."""
        for begun in self._bucket.unfinished_uploads(f"{directory}/"):
            self._bucket.abort_upload(begun)

    def _read_document(self, name: str) -> _Stored | None:
        found = self._bucket.read(checked_name(name))
        if found is None:
            return None
        wrapped = unwrapped(found[0], name, self._bucket.address(name), "nonce")
        return _Stored(Document(wrapped.value, found[1], wrapped.signature), wrapped.beside)

    def _copied(self, cache: Cache, ref: ArtifactRef, opened: Opened, manifest: Manifest) -> Sequence[Difference]:
        """Bring the artifact into the cache; what changes while it is read is read once more from the start."""
        found: Sequence[Difference] = ()
        for _ in range(2):
            objects = objects_of(self._bucket, opened.directory)
            found = listing_differences(manifest, objects)
            if found:
                continue
            try:
                return cache.get(ref, manifest, opened.files, partial(download, self._bucket, objects))
            except Changed as error:
                found = [Difference(error.where, "changed while it was read")]
        return found

    def _differences(
        self, ref: ArtifactRef, of_file: Callable[[Bucket, ManifestFile, S3Object], Difference | None]
    ) -> Sequence[Difference]:
        opened = self._seals.open(ref, _directory(ref))
        problems = self._seals.problems(opened)
        if opened.manifest is None or problems:
            return problems
        objects = objects_of(self._bucket, opened.directory)
        found = listing_differences(opened.manifest, objects)
        named = {difference.path for difference in found}
        rest = [file for file in opened.manifest.files if file.path not in named]
        compared = in_parallel(lambda file: of_file(self._bucket, file, objects[file.path]), rest)
        return found + [difference for difference in compared if difference]

    def _damaged(self, ref: ArtifactRef, opened: Opened, found: Sequence[Difference]) -> IntegrityError:
        """The error for damage, after which the artifact is complete no more: the next run makes it again."""
        if opened.sealed.marker is not None:
            self._seals.break_marker(opened)
            log.warning("a damaged artifact is no longer marked complete", artifact=str(ref))
        return self._not_whole(ref, found)

    def _not_whole(self, ref: ArtifactRef, found: Sequence[Difference]) -> IntegrityError:
        return not_whole(ref, found, self._bucket.address(_directory(ref)))

    def _by_artifact(self) -> Iterator[tuple[ArtifactRef, list[S3Object]]]:
        """All that lies below `artifacts/`, complete or not; a listing comes in the order of names."""
        for key, objects in groupby(self._bucket.list(f"{_ARTIFACTS}/"), lambda item: item.name.split("/")[1:3]):
            if len(key) == 2:  # noqa: PLR2004 - kind and digest
                yield ArtifactRef(kind=key[0], digest=key[1]), list(objects)

    def _incomplete_artifacts(self) -> Iterator[Leftover]:
        for ref, objects in self._by_artifact():
            if all(item.name != f"{_directory(ref)}/{COMPLETE_FILE}" for item in objects):
                size = sum(item.size for item in objects)
                changed = max(item.changed_at for item in objects)
                yield Leftover(name=_directory(ref), bytes=size, changed_at=changed)


@dataclass(frozen=True)
class _Stored:
    document: Document
    nonce: str


def _directory(ref: ArtifactRef) -> str:
    return checked_name(f"{_ARTIFACTS}/{ref.kind}/{ref.digest}")
