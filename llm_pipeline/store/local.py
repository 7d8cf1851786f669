"""The artifact store on a local or shared POSIX file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import JsonValue

from llm_pipeline.config.store import StoreConfig
from llm_pipeline.digest import sha256_bytes
from llm_pipeline.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.store.artifact_store import Conflict, Difference, Document, Leftover, StoredArtifact
from llm_pipeline.store.manifest import (
    COMPLETE_FILE,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    Seal,
    Sealed,
    differences,
    inventory,
)
from llm_pipeline.store.names import checked_name
from llm_pipeline.store.provenance import Provenance

_COPY_BYTES = 1024 * 1024


class LocalStore:
    """Artifacts as directories; a new one is prepared aside and appears whole, by one rename."""

    def __init__(self, config: StoreConfig | str) -> None:
        config = StoreConfig.model_validate(config)
        if not config.uri.startswith("file:///"):
            raise ConfigError(f"not a local store: {config.uri!r}", hint="use file:///absolute/path")
        self.uri = config.uri
        self.root = Path(config.uri.removeprefix("file://"))

    def publish(self, kind: str, directory: Path, provenance: Provenance | None = None) -> ArtifactRef:
        """See `ArtifactStore.publish`."""
        manifest = Manifest(kind=kind, files=inventory(directory), provenance=provenance or Provenance())
        ref = manifest.ref
        if self.exists(ref) and not self.verify(ref):
            return ref
        incoming = self.root / "incoming" / uuid.uuid4().hex
        try:
            _copy_files(manifest, directory, incoming)
            statement = manifest.to_json()
            _write_durably(incoming / MANIFEST_FILE, statement)
            _write_durably(
                incoming / COMPLETE_FILE, Seal(manifest_sha256=sha256_bytes(statement)).model_dump_json().encode()
            )
            self._place(incoming, self._directory(ref))
        except OSError as error:
            raise _store_error(error, f"cannot publish {ref}") from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return ref

    def fetch(self, ref: ArtifactRef) -> Path:
        """See `ArtifactStore.fetch`."""
        if found := self.verify(ref):
            listing = "; ".join(f"{difference.path}: {difference.problem}" for difference in found[:5])
            raise IntegrityError(
                f"artifact {ref} is not whole: {listing}",
                where=str(self._directory(ref)),
                hint="run the release again: the stage that makes it will replace it",
            )
        return self._directory(ref)

    def verify(self, ref: ArtifactRef) -> Sequence[Difference]:
        """See `ArtifactStore.verify`."""
        opened = self._open(ref)
        return [opened] if isinstance(opened, Difference) else differences(opened, self._directory(ref))

    def check(self, ref: ArtifactRef) -> Sequence[Difference]:
        """See `ArtifactStore.check`."""
        return self.verify(ref)

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """See `ArtifactStore.manifest`."""
        opened = self._open(ref)
        if isinstance(opened, Difference):
            raise IntegrityError(f"artifact {ref} is not whole: {opened.path}: {opened.problem}")
        return opened

    def exists(self, ref: ArtifactRef) -> bool:
        """See `ArtifactStore.exists`."""
        return (self._directory(ref) / COMPLETE_FILE).is_file()

    def artifacts(self) -> Iterator[StoredArtifact]:
        """See `ArtifactStore.artifacts`."""
        for marker in (self.root / "artifacts").glob(f"*/*/{COMPLETE_FILE}"):
            ref = ArtifactRef(kind=marker.parent.parent.name, digest=marker.parent.name)
            yield StoredArtifact(ref, _changed_at(marker))

    def remove(self, ref: ArtifactRef) -> None:
        """See `ArtifactStore.remove`."""
        doomed = self.root / "incoming" / f"removed-{uuid.uuid4().hex}"
        doomed.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._directory(ref).rename(doomed)  # gone in one step; its files follow
            shutil.rmtree(doomed)

    def leftovers(self, older_than: timedelta) -> Sequence[Leftover]:
        """See `ArtifactStore.leftovers`."""
        limit = datetime.now(UTC) - older_than
        directories = [*(self.root / "incoming").glob("*"), *(self.root / "damaged").glob("*")]
        found = [(path, _changed_at(path)) for path in directories]
        return [
            Leftover(path.relative_to(self.root).as_posix(), _bytes_below(path), changed)
            for path, changed in found
            if changed < limit
        ]

    def remove_leftover(self, leftover: Leftover) -> None:
        """See `ArtifactStore.remove_leftover`."""
        shutil.rmtree(self._path(leftover.name), ignore_errors=True)

    def read_document(self, name: str) -> Document | None:
        """See `ArtifactStore.read_document`."""
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        try:
            wrapped = json.loads(data)
            return Document(value=wrapped["value"], revision=str(wrapped["revision"]))
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"not a document of the store: {error}", where=str(self._path(name))) from error

    def write_document(self, name: str, value: Mapping[str, JsonValue], expect: str | None) -> str:
        """See `ArtifactStore.write_document`."""
        path = self._path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(name):
                current = self.read_document(name)
                if (current.revision if current else None) != expect:
                    raise Conflict(f"{name} was changed by somebody else", hint="read it again and retry")
                revision = str(int(expect or 0) + 1)
                document = {"revision": revision, "value": dict(value)}
                _replace_durably(path, json.dumps(document, indent=1, allow_nan=False).encode())
                return revision
        except OSError as error:
            raise _store_error(error, f"cannot write {name}") from error

    def delete_document(self, name: str) -> None:
        """See `ArtifactStore.delete_document`."""
        path = self._path(name)
        if path.exists():
            with self._locked(name):
                path.unlink(missing_ok=True)

    def list_documents(self, prefix: str) -> Sequence[str]:
        """See `ArtifactStore.list_documents`."""
        base = self._path(prefix.rstrip("/"))
        return sorted(path.relative_to(self.root).as_posix() for path in base.rglob("[!.]*.json") if path.is_file())

    def write_file(self, name: str, data: bytes) -> None:
        """See `ArtifactStore.write_file`."""
        path = self._path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace_durably(path, data)
        except OSError as error:
            raise _store_error(error, f"cannot write {name}") from error

    def read_file(self, name: str) -> bytes:
        """See `ArtifactStore.read_file`."""
        return self._path(name).read_bytes()

    def _open(self, ref: ArtifactRef) -> Manifest | Difference:
        names = (COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE)
        marker, manifest, signature = (_read_if_there(self._directory(ref) / name) for name in names)
        return Sealed(marker=marker, manifest=manifest, signature=signature).open(ref)

    def _directory(self, ref: ArtifactRef) -> Path:
        return self.root / "artifacts" / ref.kind / ref.digest

    def _path(self, name: str) -> Path:
        return self.root / checked_name(name)

    def _place(self, incoming: Path, final: Path) -> None:
        """Move a finished artifact to its name; a damaged one that is in the way is put aside, not mixed."""
        final.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(f"artifacts/{final.parent.name}/{final.name}"):
            if final.exists():
                damaged = self.root / "damaged" / f"{final.name}.{uuid.uuid4().hex[:8]}"
                damaged.parent.mkdir(parents=True, exist_ok=True)
                final.rename(damaged)
            incoming.rename(final)
            _sync_directory(final.parent)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """A short lock, held by the kernel for this process only: a killed holder frees it."""
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / sha256_bytes(name.encode())[:32]).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _changed_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _copy_files(manifest: Manifest, source: Path, destination: Path) -> None:
    for file in manifest.files:
        copied = destination / file.path
        copied.parent.mkdir(parents=True, exist_ok=True)
        with (source / file.path).open("rb") as reader, copied.open("wb") as writer:
            shutil.copyfileobj(reader, writer, _COPY_BYTES)
            writer.flush()
            os.fsync(writer.fileno())


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _replace_durably(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        _write_durably(temporary, data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _store_error(error: OSError, message: str) -> Transient:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free disk space, then run the same command again" if full else "check the store's disk"
    return Transient(f"{message}: {error.strerror}", where=str(error.filename or ""), hint=hint)
