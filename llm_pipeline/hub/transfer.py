"""One file from a source to disk: resumed at the byte where it stopped, and accepted only with the right hash.

The hub's client downloads into a temporary file of its own that a killed process leaves useless
(https://github.com/huggingface/huggingface_hub/pull/4228), so the partial file is kept here, under its content's name.
It is hashed while it grows, so that no byte is read twice. Whether the disks have room is checked before a byte comes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.digest import blocks_of, sha256_bytes, write_all
from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import made_progress
from llm_pipeline.base.timed_connection import MINIMUM_BYTES_PER_SECOND, RATE_WINDOW_SECONDS, MinimumRate, TooSlow
from llm_pipeline.hub.git_ids import blob_hasher
from llm_pipeline.hub.source import FileBytes, SourceTooSlow, SourceUnavailable, WrongBytes

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
            write_all(self._stream.fileno(), data)
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
            made_progress()


def difference(path: Path, file: HubFile) -> str | None:
    """How a local file differs from what was pinned, or None when it is the same, byte for byte.

    Raises:
        OSError: The file is missing or cannot be read.
    """
    size = path.stat().st_size
    if size != file.size:
        return _difference(file, size, "")
    hasher = _hasher(file)
    for block in blocks_of(path):
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


log = get_logger(__name__)

_FAILURES_IN_A_ROW = 5
_LONGEST_WAIT_SECONDS = 120.0
_ATTEMPTS_AT_THE_RIGHT_BYTES = 2


class TransferStopped(Terminal):
    """Another file failed, or the process is to stop; the partial file stays for the next attempt."""


@dataclass(frozen=True)
class Transfer:
    """Fetches files of one pinned model.

    Attributes:
        source: Where they come from.
        model: The model; branches never appear in a transfer.
        partial: Directory of the partial files, on the destination's disk.
        stop: Set to end all running transfers at their next chunk.
    """

    source: FileBytes
    model: PinnedModel
    partial: Path
    stop: Event = field(default_factory=Event)

    _backoff_unit_seconds: ClassVar[float] = 1.0
    _minimum_bytes_per_second: ClassVar[int] = MINIMUM_BYTES_PER_SECOND
    _rate_window_seconds: ClassVar[float] = RATE_WINDOW_SECONDS

    def partial_file(self, file: HubFile) -> Path:
        """Where the file's bytes are kept until they are verified."""
        return self.partial / (file.sha256 or file.blob_sha1 or sha256_bytes(file.content.encode()))

    def fetch(self, file: HubFile) -> Path:
        """The file's verified bytes, in its partial file. Wrong bytes are fetched once more from the start.

        Raises:
            IntegrityError: The bytes are wrong a second time, or the source's file is not the pinned one any more.
            SourceRefused: The source does not give us the file.
            SourceUnavailable: Five attempts in a row brought nothing or were too slow, or the source asks for a wait of
                more than two minutes.
            DiskTooSmall: The disk is full.
            TransferStopped: `stop` was set.
        """
        target = self.partial_file(file)
        with PartialFile(target, file) as partial:
            if partial.size >= file.size and partial.problem():
                partial.restart()  # an earlier process's: no fault of the source's
            for attempt in range(1, _ATTEMPTS_AT_THE_RIGHT_BYTES + 1):
                problem = self._complete(file, partial)
                if problem is None:
                    return target
                partial.restart()
                if attempt < _ATTEMPTS_AT_THE_RIGHT_BYTES:
                    log.warning("wrong bytes, fetching the file again", file=file.path, problem=problem)
        target.unlink()
        raise WrongBytes(
            f"the bytes differ from the source's own metadata in two attempts: {problem}",
            where=f"{self.model.name}: {file.path}",
            hint="a proxy or mirror may change the bytes; if not, the repository is damaged",
        )

    def _complete(self, file: HubFile, partial: PartialFile) -> str | None:
        """Bring the partial file to its full size; returns what is wrong with its bytes then."""
        failures, furthest = 0, partial.size
        while partial.size < file.size:
            try:
                self._append(file, partial)
            except SourceUnavailable as error:
                got_further = partial.size > furthest and not isinstance(error, SourceTooSlow)
                failures = 1 if got_further else failures + 1
                furthest = max(furthest, partial.size)
                self._wait(error, failures, file)
            except WrongBytes as error:
                return error.message
        return partial.problem()

    def _append(self, file: HubFile, partial: PartialFile) -> None:
        """Fetch from the partial file's end on, until the file's end or the first error."""
        have = partial.size
        with self.source.open(self.model, file, have) as body:
            if body.start != partial.size:
                partial.restart()
            for chunk in self._at_minimum_rate(body.chunks, file):
                if self.stop.is_set():
                    raise _stopped(file)
                partial.append(chunk)
                made_progress()
                if partial.size > file.size:
                    return  # too long: the check of the size will tell
        if partial.size <= have:
            raise SourceUnavailable("the answer ended before it brought anything", where=file.path)

    def _at_minimum_rate(self, chunks: Iterable[bytes], file: HubFile) -> Iterator[bytes]:
        """The chunks, as long as they come at the minimum rate; what we wait by ourselves does not count."""
        rate, asked_at = MinimumRate(self._minimum_bytes_per_second, self._rate_window_seconds), time.monotonic()
        for chunk in chunks:
            try:
                rate.count(len(chunk), time.monotonic() - asked_at)
            except TooSlow as error:
                hint = "check the network and the proxy; it is tried again"
                raise SourceTooSlow(str(error), where=file.path, hint=hint) from error
            yield chunk
            asked_at = time.monotonic()

    def _wait(self, error: SourceUnavailable, failures: int, file: HubFile) -> None:
        backoff = self._backoff_unit_seconds * 2 ** (failures - 1)
        seconds = backoff if error.retry_after_seconds is None else error.retry_after_seconds
        if failures >= _FAILURES_IN_A_ROW or seconds > _LONGEST_WAIT_SECONDS:
            raise error
        log.warning("transfer interrupted, continuing", file=file.path, reason=error.message, wait_seconds=seconds)
        if self.stop.wait(seconds):
            raise _stopped(file)


def _stopped(file: HubFile) -> TransferStopped:
    return TransferStopped("stopped before the file was complete", where=file.path, hint="the same command resumes it")


SPARE_BYTES = 64_000_000
_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class DirectoryNeed:
    """A directory that bytes will go to; it need not exist yet.

    Attributes:
        name: What it is in the deployment, e.g. `work_root`.
        directory: Where it is.
        needed: Bytes that will go there.
    """

    name: str
    directory: Path
    needed: int


def require_space(*places: DirectoryNeed) -> None:
    """Refuse what does not fit; directories on one file system share its space.

    Raises:
        DiskTooSmall: With what is needed and what is free.
    """
    by_disk: dict[int, list[DirectoryNeed]] = {}
    for place in places:
        by_disk.setdefault(_existing(place.directory).stat().st_dev, []).append(place)
    for sharing in by_disk.values():
        _require_on_one_disk(sharing)


def _require_on_one_disk(places: list[DirectoryNeed]) -> None:
    needed = sum(place.needed for place in places)
    free = shutil.disk_usage(_existing(places[0].directory)).free
    if not needed or needed + SPARE_BYTES <= free:
        return
    names = " and ".join(place.name for place in places)
    raise DiskTooSmall(
        f"{needed / _MEGABYTE:,.0f} MB are still to be fetched and only {free / _MEGABYTE:,.0f} MB are free",
        where=f"{names} ({places[0].directory})",
        hint=f"free some space, or move {names} of the deployment to a larger disk",
    )


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
