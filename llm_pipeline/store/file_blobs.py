"""Blobs as files below a directory of a local or shared POSIX file system.

A file appears, and is replaced, by one rename. Conditional operations hold a lock on the name, which the kernel frees
when its holder dies.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from llm_pipeline.base.digest import sha256_bytes, sha256_file
from llm_pipeline.base.directory_listing import list_directory
from llm_pipeline.base.durable import copy_file, make_directory, sync_directory, sync_file_system, write_durably
from llm_pipeline.base.errors import IntegrityError, Transient, hint_of
from llm_pipeline.base.file_lock import flocked_within
from llm_pipeline.store.blobs import ANY, Blob, Changed, Leftover, Listed, LocalFile, in_parallel

_INCOMING = "incoming"
_TRIES = 5
_LOCK_SECONDS = 60.0
"""A lock of a name is held for one small write: who holds it for longer is stopped, or its disk hangs."""


class FileBlobs:
    """Blobs below a directory; `incoming` there holds what is being written, `locks` the locks of names."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def address(self, name: str) -> str:
        """Its path."""
        return str(self.root / name)

    def get(self, name: str) -> Blob | None:
        """Its bytes; their SHA-256 is the revision."""
        path = self.root / name
        with disk_errors(f"cannot read {name}"):
            try:
                changed_at = self._regular(path).st_mtime
                data = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Blob(data, sha256_bytes(data), datetime.fromtimestamp(changed_at, UTC))

    def put(self, name: str, data: bytes, expect: str | None = ANY) -> str:
        """Writes it durably: after a power cut there is the old content or the new one."""
        with disk_errors(f"cannot write {name}"), self._locked(name):
            self._require(name, expect)
            with self._aside() as temporary:
                write_durably(temporary, data)
                self._move(temporary, self.root / name)
                sync_directory((self.root / name).parent)
        return sha256_bytes(data)

    def list(self, below: str) -> Iterator[Listed]:
        """Lists whatever is no directory, devices, too, and follows links to directories, as of another disk."""
        for path in _files_below(self.root / below):
            with disk_errors(f"cannot list {below}"), contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                changed_at = datetime.fromtimestamp(status.st_mtime, UTC)
                yield Listed(path.relative_to(self.root).as_posix(), status.st_size, "", changed_at)

    def delete(self, name: str, expect: str = ANY) -> None:
        """Removes it durably."""
        path = self.root / name
        with disk_errors(f"cannot remove {name}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # where there is nothing, no lock is made
            with self._locked(name):
                self._require(name, expect)
                path.unlink()
                sync_directory(path.parent)

    def delete_all(self, names: Sequence[str]) -> None:
        """Removes them, and the directories that are empty then."""
        for name in names:
            with disk_errors(f"cannot remove {name}"):
                (self.root / name).unlink(missing_ok=True)
                self._prune(self.root / name)

    def upload(self, files: Mapping[str, LocalFile], *, link: bool) -> None:
        """Copies or links files, all or none: what has arrived when one fails only fills the disk."""

        def bring(name: str) -> None:
            with self._aside() as temporary:
                if not (link and _linked(files[name].path, temporary)):
                    copy_file(files[name].path, temporary)
                self._move(temporary, self.root / name)

        if not files:
            return
        try:
            with disk_errors("cannot store what was made"):
                in_parallel(bring, files)
                sync_file_system(self.root)
        except BaseException:
            self.delete_all(list(files))
            raise

    def sha256(self, item: Listed) -> str:
        with disk_errors(f"cannot read {item.name}"):
            try:
                self._regular(self.root / item.name)
                return sha256_file(self.root / item.name)
            except FileNotFoundError as error:
                raise Changed(f"{item.name} was removed meanwhile", where=self.address(item.name)) from error

    def stated_sha256(self, item: Listed) -> str | None:
        """A disk states none: the bytes are read."""
        return self.sha256(item)

    def unfinished(self) -> Iterator[Leftover]:
        for item in self.list(_INCOMING):
            yield Leftover(name=item.name, bytes=item.size, changed_at=item.changed_at, transfer=True)

    def drop(self, leftover: Leftover) -> None:
        self.delete_all([leftover.name])

    def _require(self, name: str, expect: str | None) -> None:
        if expect != ANY:
            current = self.get(name)
            if (current.revision if current else None) != expect:
                raise Changed(f"{name} was changed by another process", where=self.address(name))

    def _regular(self, path: Path) -> os.stat_result:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):  # a named pipe would block whoever reads it
            hint = "move it out of the store: none has written it"
            raise IntegrityError("not a regular file", where=str(path), hint=hint)
        return status

    @contextlib.contextmanager
    def _aside(self) -> Iterator[Path]:
        """A name for a file that is not whole yet."""
        make_directory(self.root / _INCOMING)
        temporary = self.root / _INCOMING / f"{uuid.uuid4().hex}.partial"
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _move(self, temporary: Path, path: Path) -> None:
        """Give a file its name; whoever removes the last file of a directory removes the directory, too."""
        for attempt in range(_TRIES):
            try:
                make_directory(path.parent)
                temporary.rename(path)
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    def _prune(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # it is not empty
            for directory in path.relative_to(self.root).parents[:-2]:  # those right below the root stay
                (self.root / directory).rmdir()

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        make_directory(self.root / "locks")
        lock = self.root / "locks" / sha256_bytes(name.encode())[:32]
        hint = "is a process stopped that writes it? let it go on (kill -CONT) or end it, then run this again"
        held = Transient(f"another process holds the lock of {name}", where=str(lock), hint=hint)
        with flocked_within(lock, _LOCK_SECONDS, held):
            yield


def _files_below(directory: Path) -> Iterator[Path]:
    for path in list_directory(directory):
        with disk_errors(f"cannot list {directory}"):
            if path.is_symlink():
                path.stat()  # one that leads nowhere: a disk is not mounted
            is_directory = path.is_dir()
        if is_directory:
            yield from _files_below(path)
        else:
            yield path


def _linked(source: Path, destination: Path) -> bool:
    """Give a file another name, if it has one only and that is possible, and the mode that a copy would have."""
    try:
        if source.stat().st_nlink > 1:  # it is somebody else's, too, who may write to it
            return False
        os.link(source, destination)
    except OSError:  # on another disk, or on one without links
        return False
    destination.chmod(destination.parent.stat().st_mode & 0o666)
    return True


@contextlib.contextmanager
def disk_errors(message: str) -> Iterator[None]:
    """Make an error of the disk one of the store, with that message."""
    try:
        yield
    except OSError as error:
        where = str(error.filename2 or error.filename or "")
        hint = hint_of(error, "check the store's disk")
        raise Transient(f"{message}: {error.strerror or error}", where=where, hint=hint) from error
