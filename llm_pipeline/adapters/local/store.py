"""The artifact store on a local or shared POSIX file system."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import JsonValue

from llm_pipeline.adapters.local.directory import DirectoryStore
from llm_pipeline.base.digest import FileDigest, copy_file, sha256_bytes
from llm_pipeline.base.directory_listing import list_directories, list_directory, walk_files
from llm_pipeline.base.durable import (
    make_directory,
    replace_durably,
    sync_directory,
    sync_file_system,
    write_durably,
)
from llm_pipeline.base.errors import IntegrityError, Transient, hint_of
from llm_pipeline.base.file_lock import flocked, is_flocked
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.artifact_store import Conflict, Document, Leftover, StoredArtifact
from llm_pipeline.store.documents import checked_name, unwrapped
from llm_pipeline.store.manifest import (
    COMPLETE_FILE,
    MANIFEST_FILE,
    MARKERS,
    SIGNATURE_FILE,
    Difference,
    Manifest,
    ManifestFile,
    Seal,
    Sealed,
    differences,
    inventory,
    inventory_of,
    not_whole,
    regular_files,
)
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.signing import Signatures, signed_by

log = get_logger(__name__)

_LOCK = "in-use"


class LocalStore:
    """Artifacts as directories; a new one is prepared aside and appears whole, by one rename."""

    def __init__(self, settings: DirectoryStore | str) -> None:
        settings = DirectoryStore.model_validate(settings)
        self.uri = settings.uri
        self.root = settings.directory
        self.signatures = Signatures(settings.signing)

    def publish(
        self, kind: str, directory: Path, provenance: Provenance | None = None, *, consume: bool = False
    ) -> ArtifactRef:
        """Publishes a directory: copies it, or moves it if it may, which halves the disk space and the writing."""
        with _disk_errors(f"cannot publish {directory.name} as {kind}"), self._workplace() as workplace:
            if consume and _can_be_moved(directory, workplace):
                content, files = directory, inventory(directory)
            else:
                content, files = workplace / "artifact", _copy_tree(directory, workplace / "artifact")
            manifest = Manifest(kind=kind, files=files, provenance=provenance or Provenance())
            self._place(manifest, content)
        return manifest.ref

    def fetch(self, ref: ArtifactRef) -> Path:
        directory = self._directory(ref)
        seen = _identity(directory)
        damage = self._damage(ref)
        if damage and seen:
            self._put_damaged_aside(ref, seen)
        if found := [*damage, *self._signature_problems(ref)]:
            raise not_whole(ref, found, str(directory))
        return directory

    def verify(self, ref: ArtifactRef) -> Sequence[Difference]:
        return [*self._damage(ref), *self._signature_problems(ref)]

    def check(self, ref: ArtifactRef) -> Sequence[Difference]:
        return self.verify(ref)

    def manifest(self, ref: ArtifactRef) -> Manifest:
        opened = self._sealed(ref).open(ref)
        if isinstance(opened, Difference):
            raise not_whole(ref, [opened], str(self._directory(ref)))
        return opened

    def provenance(self, ref: ArtifactRef) -> Provenance:
        if found := self._signature_problems(ref):
            raise not_whole(ref, found, str(self._directory(ref)))
        return self.manifest(ref).provenance

    def exists(self, ref: ArtifactRef) -> bool:
        with _disk_errors(f"cannot read {ref}"):
            return (self._directory(ref) / COMPLETE_FILE).is_file()

    def artifacts(self) -> Iterator[StoredArtifact]:
        for kind in list_directories(self.root / "artifacts"):
            for directory in list_directories(kind):
                if (completed_at := _changed_at(directory / COMPLETE_FILE)) is not None:
                    yield StoredArtifact(ArtifactRef(kind=kind.name, digest=directory.name), completed_at)

    def renew(self, ref: ArtifactRef) -> bool:
        marker = self._directory(ref) / COMPLETE_FILE
        with _disk_errors(f"cannot renew {ref}"), self._locked(_lock_name(ref)):
            with contextlib.suppress(PermissionError):  # of another user, who lets nobody else write
                try:
                    os.utime(marker)
                except FileNotFoundError:
                    return False
            return True

    def remove(self, ref: ArtifactRef, *, published_before: datetime | None = None) -> bool:
        directory, doomed = self._directory(ref), self.root / "incoming" / f"removed-{uuid.uuid4().hex}"
        with _disk_errors(f"cannot remove {ref}"):
            make_directory(doomed.parent)
            with contextlib.suppress(FileNotFoundError), self._locked(_lock_name(ref)):
                published = _changed_at(directory / COMPLETE_FILE)
                if published and published_before and published > published_before:
                    return False
                directory.rename(doomed)  # it goes as it came: in one step
                sync_directory(directory.parent)
        shutil.rmtree(doomed, ignore_errors=True)  # the rest is a leftover
        return True

    def leftovers(self, older_than: timedelta) -> Sequence[Leftover]:
        limit = datetime.now(UTC) - older_than
        entries = [*list_directory(self.root / "incoming"), *list_directory(self.root / "damaged")]
        with _disk_errors("cannot list what interrupted publications left"):
            found = [self._leftover(entry) for entry in entries if not _in_use(entry)]
        return [leftover for leftover in found if leftover.changed_at <= limit]

    def remove_leftover(self, leftover: Leftover) -> None:
        path = self.root / leftover.name
        with _disk_errors(f"cannot remove {leftover.name}"):
            if path.is_symlink() or path.is_file():
                path.unlink(missing_ok=True)
            elif not _in_use(path):
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(path)

    def read_document(self, name: str) -> Document | None:
        path = self._path(name)
        with _disk_errors(f"cannot read {name}"):
            data = _read_if_there(path)
        return None if data is None else Document(*unwrapped(data, name, str(path), "revision"))

    def write_document(
        self, name: str, value: Mapping[str, JsonValue], expect: str | None, signature: str | None = None
    ) -> str:
        path = self._path(name)
        with _disk_errors(f"cannot write {name}"), self._locked(name):
            current = self.read_document(name)
            if (current.revision if current else None) != expect:
                raise Conflict(f"{name} was changed by another process", hint="read it again and retry")
            revision = uuid.uuid4().hex  # a number would come again once the document was deleted and made anew
            document = {"revision": revision, "value": dict(value)} | signed_by(signature)
            self._replace_durably(path, json.dumps(document, allow_nan=False).encode())
            return revision

    def delete_document(self, name: str) -> None:
        path = self._path(name)
        with _disk_errors(f"cannot remove {name}"):
            if path.exists():
                with self._locked(name):
                    path.unlink(missing_ok=True)
                    sync_directory(path.parent)

    def list_documents(self, prefix: str) -> Sequence[str]:
        found = []
        for path in walk_files(self._path(prefix.rstrip("/"))):
            if path.is_symlink() and not path.is_file():
                raise IntegrityError(
                    "a link in the store that leads to no document",
                    where=str(path),
                    hint="replace it by the document it points to, or remove it",
                )
            if path.suffix == ".json" and not path.name.startswith("."):
                found.append(path.relative_to(self.root).as_posix())
        return sorted(found)

    def write_file(self, name: str, data: bytes) -> None:
        with _disk_errors(f"cannot write {name}"):
            self._replace_durably(self._path(name), data)

    def read_file(self, name: str) -> bytes:
        try:
            return _read(self._path(name))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _store_error(error, f"cannot read {name}") from error

    def _sealed(self, ref: ArtifactRef) -> Sealed:
        names = (COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE)
        with _disk_errors(f"cannot read {ref}"):
            marker, manifest, signature = (_read_if_there(self._directory(ref) / name) for name in names)
        return Sealed(marker=marker, manifest=manifest, signature=signature)

    def _damage(self, ref: ArtifactRef) -> list[Difference]:
        """How the artifact differs from its seal and its manifest, whoever signed it."""
        opened = self._sealed(ref).open(ref)
        with _disk_errors(f"cannot read {ref}"):
            return [opened] if isinstance(opened, Difference) else differences(opened, self._directory(ref))

    def _signature_problems(self, ref: ArtifactRef) -> list[Difference]:
        sealed = self._sealed(ref)
        opened = sealed.open(ref)
        if isinstance(opened, Difference) or sealed.manifest is None:
            return []  # that is damage
        return self.signatures.problems(opened, sealed.manifest, sealed.signature)

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
        """Complete an artifact and move it to its name, unless a whole one is there already."""
        ref = manifest.ref
        final = self._directory(ref)
        with self._locked(_lock_name(ref)):
            if final.exists() and not self._damage(ref) and not self._signature_problems(ref):
                with contextlib.suppress(PermissionError):  # as in `renew`
                    os.utime(final / COMPLETE_FILE)
                return
            self._complete(manifest, content)
            make_directory(final.parent)
            if final.exists():
                self._put_aside(final)
            content.rename(final)
            sync_directory(final.parent)

    def _complete(self, manifest: Manifest, content: Path) -> None:
        statement = manifest.to_json()
        signature = self.signatures.sign(manifest, statement)
        write_durably(content / MANIFEST_FILE, statement)
        if signature is not None:
            write_durably(content / SIGNATURE_FILE, signature)
        seal = Seal(
            manifest_sha256=sha256_bytes(statement),
            signature_sha256=None if signature is None else sha256_bytes(signature),
        )
        write_durably(content / COMPLETE_FILE, seal.model_dump_json().encode())
        sync_file_system(content)

    def _put_damaged_aside(self, ref: ArtifactRef, seen: tuple[int, int]) -> None:
        """Put aside what was found damaged, unless it was replaced since."""
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
        name = entry.relative_to(self.root).as_posix()
        return Leftover(name=name, bytes=size, changed_at=datetime.fromtimestamp(changed, UTC))

    def _replace_durably(self, path: Path, data: bytes) -> None:
        incoming = self.root / "incoming"
        make_directory(incoming)
        make_directory(path.parent)
        replace_durably(path, data, aside=incoming)

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
    return is_flocked(entry / _LOCK)


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
    below = walk_files(entry) if entry.is_dir() and not entry.is_symlink() else ()
    for path in (entry, *below):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat(follow_symlinks=False)
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
            changed = max(changed, status.st_mtime)
    return size, changed


def _changed_at(path: Path) -> datetime | None:
    """When a file was changed last; None when there is none."""
    with _disk_errors(f"cannot read {path}"):
        try:
            return datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except FileNotFoundError:
            return None


def _read_if_there(path: Path) -> bytes | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return _read(path)
    return None


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe would block for ever
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IntegrityError(
            "not a regular file", where=str(path), hint="move it out of the store: none has written it"
        )
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


def _can_be_moved(directory: Path, workplace: Path) -> bool:
    """Whether a rename moves the directory, and its files are nobody else's; then it is given the modes of a copy."""
    if directory.stat().st_dev != workplace.stat().st_dev:
        return False
    for marker in MARKERS:  # of a publication that was killed just before its rename
        (directory / marker).unlink(missing_ok=True)
    files = [directory / path for path in regular_files(directory)]
    if any(path.stat().st_nlink > 1 for path in files):
        return False
    folders = {directory, *(parent for path in files for parent in path.parents if parent.is_relative_to(directory))}
    for paths, example in ((files, workplace / _LOCK), (folders, workplace)):
        for path in paths:  # what a temporary file was renamed to is its owner's only
            path.chmod(stat.S_IMODE(example.stat().st_mode))
    return True


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


@contextlib.contextmanager
def _disk_errors(message: str) -> Iterator[None]:
    """Make an error of the disk one of the store, with that message."""
    try:
        yield
    except OSError as error:
        raise _store_error(error, message) from error


def _store_error(error: OSError, message: str) -> Transient:
    where = str(error.filename2 or error.filename or "")
    return Transient(
        f"{message}: {error.strerror or error}", where=where, hint=hint_of(error, "check the store's disk")
    )
