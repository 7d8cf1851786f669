"""A file on its way to us: it is hashed while it grows, so that no byte is read twice."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from llm_pipeline.artifacts.pinned import HubFile
from llm_pipeline.base.errors import Terminal
from llm_pipeline.hub.git_ids import blob_hasher

if TYPE_CHECKING:
    from hashlib import _Hash

_BLOCK = 1024 * 1024


class DiskTooSmall(Terminal):
    """The model does not fit on the disk that it should go to."""


class PartialFile:
    """Bytes of one file, from its start, and their hash. What an earlier process left is hashed when it is opened."""

    def __init__(self, path: Path, file: HubFile) -> None:
        self._file = file
        self._path = path
        self._hasher = _hasher(file)
        self.size = 0
        self._stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b", buffering=0)
        self._take_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def append(self, data: bytes) -> None:
        """Add bytes at the end.

        Raises:
            DiskTooSmall: The disk is full.
        """
        try:
            written = self._stream.write(data)
            while written < len(data):
                written += self._stream.write(memoryview(data)[written:])
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskTooSmall("the disk is full", where=str(self._path.parent), hint="free some space") from error
        self._hasher.update(data)
        self.size += len(data)

    def restart(self) -> None:
        """Empty the file, to fetch it from the start."""
        self._stream.truncate(0)
        self._stream.seek(0)
        self._hasher, self.size = _hasher(self._file), 0

    def problem(self) -> str | None:
        """How the bytes differ from what they should be; None when they are it."""
        return _difference(self._file, self.size, self._hasher.hexdigest())

    def _take_in(self) -> None:
        while block := self._stream.read(_BLOCK):
            self._hasher.update(block)
            self.size += len(block)


def difference(path: Path, file: HubFile) -> str | None:
    """How a local file differs from what was pinned, or None when it is the same, byte for byte.

    Raises:
        OSError: The file is missing or cannot be read.
    """
    size = path.stat().st_size
    if size != file.size:
        return _difference(file, size, "")
    hasher = _hasher(file)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            hasher.update(block)
    return _difference(file, size, hasher.hexdigest())


def _hasher(file: HubFile) -> _Hash:
    by_blob = file.sha256 is None and file.blob_sha1 is not None
    return blob_hasher(file.size) if by_blob else hashlib.sha256()


def _difference(file: HubFile, size: int, actual: str) -> str | None:
    if size != file.size:
        return f"{size} bytes instead of {file.size}"
    if file.sha256 is not None:
        return None if actual == file.sha256 else f"SHA-256 {actual} instead of {file.sha256}"
    if file.blob_sha1 is not None:
        return None if actual == file.blob_sha1 else f"Git blob {actual} instead of {file.blob_sha1}"
    return None  # an object that only its entity tag names: the source refuses to read another one
