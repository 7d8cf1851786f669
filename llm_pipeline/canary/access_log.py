"""The router's access log, read piece by piece while it is written, rotated, deleted and truncated."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.observations import ObservedRequest, SlotOfAddress, parse_line

log = get_logger(__name__)

_LONGEST_LINE_BYTES = 1024 * 1024
_RECENT_BYTES = 4 * 1024 * 1024
_MARK_BYTES = 2048


class LogCursor(Frozen):
    """How far the access log has been read; survives rotation and restarts of the reader.

    Attributes:
        inode: The file; 0 before the first.
        offset: Bytes of it that were read, whole lines.
        mark: Length and digest of the last bytes before the offset, to notice another file with the same inode, or
            the same file truncated and grown again.
    """

    inode: int = 0
    offset: int = 0
    mark: str = ""


class FollowedFile:
    """A file that another process appends to, followed when it is renamed, deleted or truncated.

    The file is held open, so lines that are written after it was moved or deleted are still read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: BinaryIO | None = None

    def end(self) -> LogCursor:
        """The cursor behind the last whole line."""
        try:
            with self.path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                begin = max(0, status.st_size - _LONGEST_LINE_BYTES)
                stream.seek(begin)
                data = stream.read(status.st_size - begin)
                whole = data[: data.rfind(b"\n") + 1]
                return LogCursor(inode=status.st_ino, offset=begin + len(whole), mark=_mark(whole))
        except FileNotFoundError:
            return LogCursor()

    def tail(self, most_bytes: int) -> bytes:
        """The newest whole lines, including those of the last rotated file."""
        newest = _last_lines(self.path, most_bytes)
        return _last_lines(self._rotated, most_bytes - len(newest)) + newest

    def read(self, cursor: LogCursor, most_bytes: int) -> tuple[bytes, LogCursor]:
        """Whole lines since the cursor, and the cursor behind them. A file that was moved is read to its end first."""
        stream, before = self._stream(cursor), b""
        if stream is None:
            return b"", cursor
        if os.fstat(stream.fileno()).st_ino != cursor.inode:
            cursor = LogCursor(inode=os.fstat(stream.fileno()).st_ino)
        elif not _continues(stream, cursor):
            before = self._copied(cursor, most_bytes)
            cursor = LogCursor(inode=cursor.inode)
        lines, cursor = _lines(stream, cursor, most_bytes)
        if self.moved and not self.behind(cursor) and (follows := _open(self.path)) is not None:
            if os.fstat(follows.fileno()).st_size == 0:  # the router has not reopened the log yet
                follows.close()
            else:
                self._hold(follows)
                more, cursor = _lines(follows, LogCursor(inode=os.fstat(follows.fileno()).st_ino), most_bytes)
                lines += more
        return before + lines, cursor

    @property
    def moved(self) -> bool:
        """Whether the path now names another file than the one being read, or no file."""
        try:
            found = self.path.stat().st_ino
        except FileNotFoundError:
            return True
        return self._held is not None and os.fstat(self._held.fileno()).st_ino != found

    def behind(self, cursor: LogCursor) -> bool:
        """Whether there is more than an unfinished line after the cursor."""
        if self._held is None:
            return False
        return bool(_lines(self._held, cursor, _LONGEST_LINE_BYTES)[0])

    @property
    def _rotated(self) -> Path:
        return self.path.with_name(f"{self.path.name}.1")

    def _hold(self, stream: BinaryIO) -> BinaryIO:
        if self._held is not None:
            self._held.close()
        self._held = stream
        return stream

    def _stream(self, cursor: LogCursor) -> BinaryIO | None:
        """The file that the cursor is in, wherever it is now; else the one at the path, None without one."""
        if self._held is not None and os.fstat(self._held.fileno()).st_ino == cursor.inode:
            return self._held
        for path in (self.path, *self._siblings()):
            stream = _open(path)
            if stream is None:
                continue
            if cursor.inode in (0, os.fstat(stream.fileno()).st_ino):
                return self._hold(stream)
            stream.close()
        stream = _open(self.path)
        if stream is not None:
            log.warning("a file of the access log is gone, with lines that were not read yet", path=str(self.path))
        return stream and self._hold(stream)

    def _copied(self, cursor: LogCursor, most_bytes: int) -> bytes:
        """Lines after the cursor from a copy that was made before the file was truncated."""
        for path in self._siblings():
            stream = _open(path)
            if stream is not None:
                with stream:
                    if cursor.mark and _continues(stream, cursor):
                        return _lines(stream, cursor, most_bytes)[0]
        return b""

    def _siblings(self) -> list[Path]:
        return [path for path in sorted(self.path.parent.glob(f"{self.path.name}?*")) if path.is_file()]


class AccessLog:
    """Reads an Envoy access log incrementally, whole lines only.

    Attributes:
        damaged: Lines that could not be understood so far.
        behind: Whether the last read left lines unread.
    """

    def __init__(
        self,
        path: Path,
        slot_of_address: SlotOfAddress,
        *,
        reopen: Callable[[], object] | None = None,
        largest_bytes: int | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            path: Of the log.
            slot_of_address: The slot of an upstream address.
            reopen: Tells the router to open its log again, once its file was moved or deleted.
            largest_bytes: A longer log is put aside, as `<name>.1`; None leaves that to somebody else.
        """
        self._file = FollowedFile(path)
        self._slot_of_address = slot_of_address
        self._reopen = reopen
        self._largest = largest_bytes
        self.damaged = 0
        self.behind = False

    def end(self) -> LogCursor:
        """The cursor behind the last whole line."""
        return self._file.end()

    def recent(self, since: float, most_bytes: int = _RECENT_BYTES) -> list[ObservedRequest]:
        """Requests that started at or after `since` and ended, as far back as the newest bytes of the log go."""
        found = self._requests(self._file.tail(most_bytes).splitlines())
        return [request for request in found if request.started_at >= since and not request.in_flight]

    def read(self, cursor: LogCursor, most_bytes: int = 2**62) -> tuple[list[ObservedRequest], LogCursor]:
        """Requests written since `cursor`, and the cursor behind them.

        A log that was moved, or deleted while this object read it, is read to its end first; one that was truncated is
        read from its start. The router is told to open its log again.

        Args:
            cursor: Where an earlier call ended.
            most_bytes: Of the log that are read in one call; what is left is for the next one (see `behind`).
        """
        self._put_aside()
        lines, cursor = self._file.read(cursor, most_bytes)
        self.behind = self._file.behind(cursor)
        if self._file.moved:
            self._ask_to_reopen()
        return list(self._requests(lines.splitlines())), cursor

    def keep(self) -> None:
        """Rotate and reopen the file. Reading does this too; call it while nothing reads."""
        self._put_aside()
        if not self._file.path.exists():
            self._ask_to_reopen()

    def _put_aside(self) -> None:
        path = self._file.path
        if self._largest is None or self._file.moved:
            return
        with contextlib.suppress(FileNotFoundError):  # the guard, or a controller, put it aside at the same moment
            if path.stat().st_size <= self._largest:
                return
            path.rename(path.with_name(f"{path.name}.1"))
        self._ask_to_reopen()

    def _ask_to_reopen(self) -> None:
        """Ask the router to reopen its log; repeated at each read until it writes to the path."""
        if self._reopen is None:
            return
        try:
            self._reopen()
        except Transient as error:
            log.warning("the router cannot be told to reopen its log", reason=str(error))

    def _requests(self, lines: Iterable[bytes]) -> Iterator[ObservedRequest]:
        """The requests of the lines; a damaged line is counted and left out."""
        damaged = 0
        for line in lines:
            try:
                request = parse_line(line, self._slot_of_address)
            except ValueError:
                damaged += 1
                continue
            if request is not None:
                yield request
        if damaged:
            self.damaged += damaged
            log.warning("damaged lines of the access log are ignored", lines=damaged, path=str(self._file.path))


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _mark(lines: bytes) -> str:
    """How many the last bytes are, and their digest."""
    last = lines[-_MARK_BYTES:]
    return f"{len(last)}:{hashlib.sha256(last).hexdigest()[:16]}" if last else ""


def _continues(stream: BinaryIO, cursor: LogCursor) -> bool:
    """Whether the bytes before the cursor are unchanged."""
    if os.fstat(stream.fileno()).st_size < cursor.offset:
        return False
    length = int(cursor.mark.partition(":")[0] or 0)
    stream.seek(cursor.offset - length)
    return _mark(stream.read(length)) == cursor.mark


def _lines(stream: BinaryIO, cursor: LogCursor, most_bytes: int) -> tuple[bytes, LogCursor]:
    """Whole lines after the cursor; longer ones than the router writes are damaged and left out."""
    size = os.fstat(stream.fileno()).st_size
    stream.seek(cursor.offset)
    data = stream.read(max(0, min(size - cursor.offset, most_bytes)))
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) >= min(most_bytes, _LONGEST_LINE_BYTES):
        return b"", LogCursor(inode=cursor.inode, offset=cursor.offset + len(data), mark=_mark(data))
    if not whole:
        return b"", cursor
    return whole, LogCursor(inode=cursor.inode, offset=cursor.offset + len(whole), mark=_mark(whole))


def _last_lines(path: Path, most_bytes: int) -> bytes:
    """The last whole lines of a file; empty if there is no file."""
    stream = _open(path) if most_bytes > 0 else None
    if stream is None:
        return b""
    with stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, size - most_bytes))
        data = stream.read(min(size, most_bytes))
    if size > most_bytes:
        data = data[data.find(b"\n") + 1 :]
    return data[: data.rfind(b"\n") + 1]
