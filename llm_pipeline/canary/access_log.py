"""The router's access log, read piece by piece while it is written and rotated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from llm_pipeline.canary.observations import ObservedRequest, SlotOfAddress, parse_line
from llm_pipeline.logging import get_logger

log = get_logger(__name__)

_LONGEST_LINE_BYTES = 1024 * 1024
_RECENT_BYTES = 4 * 1024 * 1024


class LogCursor(BaseModel):
    """How far the access log has been read; survives rotation and restarts of the reader."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inode: int = 0
    offset: int = 0


class AccessLog:
    """Reads an Envoy access log incrementally, whole lines only.

    Attributes:
        damaged: Lines that could not be understood so far.
    """

    def __init__(self, path: Path, slot_of_address: SlotOfAddress) -> None:
        self._path = path
        self._slot_of_address = slot_of_address
        self.damaged = 0

    def end(self) -> LogCursor:
        """The cursor behind the last whole line."""
        try:
            with self._path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                begin = max(0, status.st_size - _LONGEST_LINE_BYTES)
                stream.seek(begin)
                last = stream.read(status.st_size - begin).rfind(b"\n")
                return LogCursor(inode=status.st_ino, offset=begin + last + 1)
        except FileNotFoundError:
            return LogCursor()

    def recent(self, since: float, most_bytes: int = _RECENT_BYTES) -> list[ObservedRequest]:
        """Requests that started at or after `since` and ended, as far back as the newest bytes of the log go."""
        end = self.end()
        found, _ = self.read(LogCursor(inode=end.inode, offset=max(0, end.offset - most_bytes)))
        return [request for request in found if request.started_at >= since and not request.in_flight]

    def read(self, cursor: LogCursor) -> tuple[list[ObservedRequest], LogCursor]:
        """Requests written since `cursor`, and the cursor behind them.

        A log that was rotated to `<name>.1` is read to its end first; a truncated one is read from its start.
        """
        try:
            current = self._path.stat()
        except FileNotFoundError:
            return [], cursor
        requests: list[ObservedRequest] = []
        if cursor.inode not in (0, current.st_ino):
            requests += self._read_rotated(cursor)
            cursor = LogCursor(inode=current.st_ino)
        start = cursor.offset if cursor.offset <= current.st_size else 0
        found, end = self._read_lines(self._path, start)
        return requests + found, LogCursor(inode=current.st_ino, offset=end)

    def _read_rotated(self, cursor: LogCursor) -> list[ObservedRequest]:
        rotated = self._path.with_name(f"{self._path.name}.1")
        if not rotated.exists() or rotated.stat().st_ino != cursor.inode:
            return []
        return self._read_lines(rotated, cursor.offset)[0]

    def _read_lines(self, path: Path, start: int) -> tuple[list[ObservedRequest], int]:
        with path.open("rb") as stream:
            stream.seek(start)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        return list(self._requests(whole.splitlines())), start + len(whole)

    def _requests(self, lines: Iterable[bytes]) -> Iterator[ObservedRequest]:
        """Those that the lines tell of; a damaged line is counted and left out, whatever is wrong with it."""
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
            log.warning("damaged lines of the access log are left out", lines=damaged, path=str(self._path))
