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
from llm_pipeline.digest import FileDigest, copy_file, sha256_bytes, write_all
from llm_pipeline.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.logging import get_logger
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.store.artifact_store import Conflict, Difference, Document, Leftover, StoredArtifact
from llm_pipeline.store.durable import flocked, make_directory, sync_directory, sync_file_system
from llm_pipeline.store.manifest import (
    COMPLETE_FILE,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    ManifestFile,
    Seal,
    Sealed,
    differences,
    inventory_of,
)
from llm_pipeline.store.names import checked_name
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.signing import Signatures

log = get_logger(__name__)

_LOCK = "in-use"


class LocalStore:
    """Artifacts as directories; a new one is prepared aside and appears whole, by one rename."""

    def __init__(self, config: StoreConfig | str) -> None:
        config = StoreConfig.model_validate(config)
        if not config.uri.startswith("file:///"):
            raise ConfigError(f"not a local store: {config.uri!r}", hint="use file:///absolute/path")
        self.uri = config.uri
        self.root = Path(config.uri.removeprefix("file://"))
        self._signatures = Signatures(config.signing)

    def publish(self, kind: str, directory: Path, provenance: Provenance | None = None) -> ArtifactRef:
        """See `ArtifactStore.publish`."""
        try:
            with self._workplace() as workplace:
                files = _copy_tree(directory, workplace / "artifact")
                manifest = Manifest(kind=kind, files=files, provenance=provenance or Provenance())
                self._place(manifest, workplace / "artifact")
        except OSError as error:
            raise _store_error(error, f"cannot publish {directory.name} as {kind}") from error
        return manifest.ref

    def fetch(self, ref: ArtifactRef) -> Path:
        """See `ArtifactStore.fetch`."""
        directory = self._directory(ref)
        seen = _identity(directory)
        damage = self._damage(ref)
        if damage and seen:
            self._put_damaged_aside(ref, seen)
        if found := [*damage, *self._signature_problems(ref)]:
            listing = "; ".join(f"{difference.path}: {difference.problem}" for difference in found[:5])
            raise IntegrityError(
                f"artifact {ref} is not whole: {listing}",
                where=str(directory),
                hint="run the release again: the stage that makes it will replace it",
            )
        return directory

    def verify(self, ref: ArtifactRef) -> Sequence[Difference]:
        """See `ArtifactStore.verify`."""
        return [*self._damage(ref), *self._signature_problems(ref)]

    def check(self, ref: ArtifactRef) -> Sequence[Difference]:
        """See `ArtifactStore.check`."""
        return self.verify(ref)

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """See `ArtifactStore.manifest`."""
        opened = self._sealed(ref).open(ref)
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
        directory, doomed = self._directory(ref), self.root / "incoming" / f"removed-{uuid.uuid4().hex}"
        try:
            make_directory(doomed.parent)
            with self._locked(_lock_name(ref)):
                directory.rename(doomed)  # it goes as it came: in one step
                sync_directory(directory.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _store_error(error, f"cannot remove {ref}") from error
        shutil.rmtree(doomed, ignore_errors=True)

    def leftovers(self, older_than: timedelta) -> Sequence[Leftover]:
        """See `ArtifactStore.leftovers`."""
        limit = datetime.now(UTC) - older_than
        entries = [*(self.root / "incoming").glob("*"), *(self.root / "damaged").glob("*")]
        found = [self._leftover(entry) for entry in entries if not _in_use(entry)]
        return [leftover for leftover in found if leftover.changed_at <= limit]

    def remove_leftover(self, leftover: Leftover) -> None:
        """See `ArtifactStore.remove_leftover`."""
        path = self._path(leftover.name)
        if path.is_file():
            path.unlink(missing_ok=True)
        elif not _in_use(path):
            shutil.rmtree(path, ignore_errors=True)

    def read_document(self, name: str) -> Document | None:
        """See `ArtifactStore.read_document`."""
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _store_error(error, f"cannot read {name}") from error
        try:
            wrapped = json.loads(data)
            return Document(value=wrapped["value"], revision=str(wrapped["revision"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise IntegrityError(f"not a document of the store: {error}", where=str(self._path(name))) from error

    def write_document(self, name: str, value: Mapping[str, JsonValue], expect: str | None) -> str:
        """See `ArtifactStore.write_document`."""
        path = self._path(name)
        try:
            with self._locked(name):
                current = self.read_document(name)
                if (current.revision if current else None) != expect:
                    raise Conflict(f"{name} was changed by somebody else", hint="read it again and retry")
                revision = uuid.uuid4().hex  # a number would come again once the document was deleted and made anew
                document = {"revision": revision, "value": dict(value)}
                self._replace_durably(path, json.dumps(document, indent=1, allow_nan=False).encode())
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
            self._replace_durably(path, data)
        except OSError as error:
            raise _store_error(error, f"cannot write {name}") from error

    def read_file(self, name: str) -> bytes:
        """See `ArtifactStore.read_file`."""
        return self._path(name).read_bytes()

    def _sealed(self, ref: ArtifactRef) -> Sealed:
        names = (COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE)
        marker, manifest, signature = (_read_if_there(self._directory(ref) / name) for name in names)
        return Sealed(marker=marker, manifest=manifest, signature=signature)

    def _damage(self, ref: ArtifactRef) -> list[Difference]:
        """How the artifact differs from its seal and its manifest, whoever signed it."""
        try:
            opened = self._sealed(ref).open(ref)
            return [opened] if isinstance(opened, Difference) else differences(opened, self._directory(ref))
        except OSError as error:
            raise _store_error(error, f"cannot read {ref}") from error

    def _signature_problems(self, ref: ArtifactRef) -> list[Difference]:
        sealed = self._sealed(ref)
        opened = sealed.open(ref)
        if isinstance(opened, Difference) or sealed.manifest is None:
            return []  # that is damage
        return self._signatures.problems(opened, sealed.manifest, sealed.signature)

    def _should_be_signed_again(self, ref: ArtifactRef) -> bool:
        sealed = self._sealed(ref)
        opened = sealed.open(ref)
        if isinstance(opened, Difference) or sealed.manifest is None:
            return True
        return self._signatures.lacking(opened, sealed.manifest, sealed.signature)

    def _directory(self, ref: ArtifactRef) -> Path:
        return self.root / "artifacts" / ref.kind / ref.digest

    def _path(self, name: str) -> Path:
        return self.root / checked_name(name)

    @contextlib.contextmanager
    def _workplace(self) -> Iterator[Path]:
        """A private directory for one publication; a lock in it, freed by the kernel, says that it is in use."""
        workplace = self.root / "incoming" / uuid.uuid4().hex
        make_directory(workplace)
        try:
            with flocked(workplace / _LOCK):
                yield workplace
        finally:
            shutil.rmtree(workplace, ignore_errors=True)

    def _place(self, manifest: Manifest, content: Path) -> None:
        """Complete a copied artifact and move it to its name, unless a whole one is there already."""
        ref = manifest.ref
        final = self._directory(ref)
        with self._locked(_lock_name(ref)):
            if final.exists() and not self._should_be_signed_again(ref) and not self._damage(ref):
                return
            self._complete(manifest, content)
            make_directory(final.parent)
            if final.exists():
                self._put_aside(final)
            content.rename(final)
            sync_directory(final.parent)

    def _complete(self, manifest: Manifest, content: Path) -> None:
        statement = manifest.to_json()
        signature = self._signatures.sign(manifest, statement)
        _write_durably(content / MANIFEST_FILE, statement)
        if signature is not None:
            _write_durably(content / SIGNATURE_FILE, signature)
        seal = Seal(
            manifest_sha256=sha256_bytes(statement),
            signature_sha256=None if signature is None else sha256_bytes(signature),
        )
        _write_durably(content / COMPLETE_FILE, seal.model_dump_json().encode())
        sync_file_system(content)

    def _put_damaged_aside(self, ref: ArtifactRef, seen: tuple[int, int]) -> None:
        """Put aside what was found damaged, not what somebody may have put in its place since."""
        directory = self._directory(ref)
        try:
            with self._locked(_lock_name(ref)):
                if _identity(directory) == seen:
                    aside = self._put_aside(directory)
                    log.warning("a damaged artifact was put aside", artifact=str(ref), directory=str(aside))
        except OSError as error:  # a store mounted read-only: whoever may write will replace it
            log.warning("a damaged artifact could not be put aside", artifact=str(ref), reason=str(error))

    def _put_aside(self, directory: Path) -> Path:
        aside = self.root / "damaged" / f"{directory.name}.{uuid.uuid4().hex[:8]}"
        make_directory(aside.parent)
        os.utime(directory)  # its age as a leftover begins now
        directory.rename(aside)
        sync_directory(directory.parent)
        return aside

    def _leftover(self, entry: Path) -> Leftover:
        size, changed = _extent(entry)
        return Leftover(entry.relative_to(self.root).as_posix(), size, datetime.fromtimestamp(changed, UTC))

    def _replace_durably(self, path: Path, data: bytes) -> None:
        temporary = self.root / "incoming" / f"document-{uuid.uuid4().hex}"
        make_directory(temporary.parent)
        make_directory(path.parent)
        try:
            _write_durably(temporary, data)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """A short lock, held by the kernel for this process only: a killed holder frees it."""
        locks = self.root / "locks"
        make_directory(locks)
        with flocked(locks / sha256_bytes(name.encode())[:32]):
            yield


def _lock_name(ref: ArtifactRef) -> str:
    return f"artifacts/{ref.kind}/{ref.digest}"


def _in_use(entry: Path) -> bool:
    """Whether a publication works in that directory."""
    try:
        descriptor = os.open(entry / _LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _identity(directory: Path) -> tuple[int, int] | None:
    """Tells a directory from another one that took its place; None when there is none."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _extent(entry: Path) -> tuple[int, float]:
    """Bytes below a path, and the time of the last change there; what vanishes meanwhile does not count."""
    size, changed = 0, 0.0
    for path in (entry, *entry.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat(follow_symlinks=False)
            size += status.st_size if path.is_file() else 0
            changed = max(changed, status.st_mtime)
    return size, changed


def _changed_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _copy_tree(source: Path, destination: Path) -> tuple[ManifestFile, ...]:
    """Copy a directory's regular files, hashing what is written on the way."""
    made: set[Path] = set()

    def copy(path: str) -> FileDigest:
        copied = destination / path
        if copied.parent not in made:
            copied.parent.mkdir(parents=True, exist_ok=True)
            made.add(copied.parent)
        return copy_file(source / path, copied)

    return inventory_of(source, copy)


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _store_error(error: OSError, message: str) -> Transient:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free disk space, then run the same command again" if full else "check the store's disk"
    return Transient(f"{message}: {error.strerror}", where=str(error.filename or ""), hint=hint)
