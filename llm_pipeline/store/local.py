"""The artifact store on a local or shared POSIX file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from llm_pipeline.digest import sha256_bytes, sha256_file
from llm_pipeline.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.store.artifact_store import Conflict, Difference, Document
from llm_pipeline.store.manifest import COMPLETE_FILE, MANIFEST_FILE, Manifest, differences, inventory

_COPY_BYTES = 1024 * 1024
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+@-]*(/[A-Za-z0-9_][A-Za-z0-9_.:+@-]*)*")


class LocalStore:
    """Artifacts as directories; a new one is prepared aside and appears whole, by one rename."""

    def __init__(self, uri: str) -> None:
        if not uri.startswith("file:///"):
            raise ConfigError(f"not a local store: {uri!r}", hint="use file:///absolute/path")
        self.uri = uri
        self.root = Path(uri.removeprefix("file://"))

    def publish(self, kind: str, directory: Path, provenance: Mapping[str, JsonValue]) -> ArtifactRef:
        """See `ArtifactStore.publish`."""
        manifest = Manifest(kind=kind, files=inventory(directory), provenance=dict(provenance))
        ref = ArtifactRef(kind=kind, digest=manifest.digest)
        if self.exists(ref) and not self.verify(ref):
            return ref
        incoming = self.root / "incoming" / uuid.uuid4().hex
        try:
            _copy_files(manifest, directory, incoming)
            _write_durably(incoming / MANIFEST_FILE, manifest.model_dump_json(indent=1).encode())
            marker = {"manifest_sha256": sha256_file(incoming / MANIFEST_FILE)}
            _write_durably(incoming / COMPLETE_FILE, json.dumps(marker).encode())
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
        directory = self._directory(ref)
        try:
            marker = json.loads((directory / COMPLETE_FILE).read_bytes())
            manifest_bytes = (directory / MANIFEST_FILE).read_bytes()
        except FileNotFoundError as error:
            return [Difference(Path(error.filename).name, "missing")]
        except ValueError:
            return [Difference(COMPLETE_FILE, "not JSON")]
        if marker.get("manifest_sha256") != sha256_bytes(manifest_bytes):
            return [Difference(MANIFEST_FILE, "changed since the artifact was completed")]
        try:
            manifest = Manifest.model_validate_json(manifest_bytes)
        except ValidationError as error:
            return [Difference(MANIFEST_FILE, f"not a manifest: {error}")]
        if manifest.digest != ref.digest:
            return [Difference(MANIFEST_FILE, f"is of artifact {manifest.digest}, not {ref.digest}")]
        return differences(manifest, directory)

    def exists(self, ref: ArtifactRef) -> bool:
        """See `ArtifactStore.exists`."""
        return (self._directory(ref) / COMPLETE_FILE).is_file()

    def size(self, ref: ArtifactRef) -> int:
        """See `ArtifactStore.size`."""
        manifest = Manifest.model_validate_json((self._directory(ref) / MANIFEST_FILE).read_bytes())
        return manifest.size

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

    def _directory(self, ref: ArtifactRef) -> Path:
        return self.root / "artifacts" / ref.kind / ref.digest

    def _path(self, name: str) -> Path:
        if not _SAFE_NAME.fullmatch(name):
            raise ConfigError(f"not a name for the store: {name!r}")
        return self.root / name

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
