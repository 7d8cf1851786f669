"""The router's access log as single requests, read piece by piece while it is written and put aside.

A request belongs to the arm whose cluster the router chose, whichever slot answered it. If the other slot answered, or
a second attempt was needed, the arm's own server failed and fail-over hid it: the user lost nothing, and the fault
still counts against the arm.

The log has a line when a request ends, and one a second while it is in flight, so a request that hangs is seen, too.
Of the answers of OpenAI's API it has times and texts; of Triton's own API and of gRPC the status alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.store.place_state import Slot

log = get_logger(__name__)

FAILOVER_SUFFIX = "_failover"
BACKED_SUFFIX = "_backed"

_LONGEST_LINE_BYTES = 1024 * 1024
_RECENT_BYTES = 4 * 1024 * 1024

# invalid argument, not found, already exists, permission denied, failed precondition, out of range, unimplemented,
# unauthenticated: both versions would answer the same request like that. Any other but OK is the server's fault.
_REFUSING_GRPC_STATUSES = frozenset({3, 5, 6, 7, 9, 11, 12, 16})
_FAULT_FLAGS = frozenset({"UF", "UO", "NR", "NC", "UT", "LR", "UR", "UC", "UPE", "UMSDR", "OM", "NFCF", "UH"})
_CANCELLED_FLAGS = frozenset({"DC", "DR"})
_ROUTES = ("/chat/completions", "/completions")
_GIVEN_UP = ("", "cancelled", "abort")
_CALLS_TOOLS = ("tool_calls", "function_call")
_IN_FLIGHT = "DownstreamPeriodic"
_SLOTS: dict[str, Slot] = {"blue": "blue", "green": "green"}

SlotOfAddress = Callable[[str | None], Slot | None]
"""The slot of an upstream address, as the log has it."""


def plain_name(arm: str) -> str:
    """The plain cluster of the slot whose arm this is: the inverse of `arm_name` in `router`."""
    return arm.removesuffix(FAILOVER_SUFFIX).removesuffix(BACKED_SUFFIX)


@dataclass(frozen=True)
class ObservedRequest:
    """One request: as it ended, or as it was while it was in flight.

    Attributes:
        started_at: Seconds since 1970.
        arm: The slot that the router chose.
        on_trial: The arm was the candidate's at that time.
        fault: The server of the arm failed it, hidden by fail-over or not.
        error: A fault, or a refusal (4xx) by every server that was asked.
        lost: The user saw a failure.
        refused: Every server that was asked refused it (4xx).
        cancelled: The user disconnected before the answer's end.
        in_flight: It had not ended; its times are those until the line was written.
        streaming: The answer was a stream of tokens.
        route: The end of the path of a completion; empty for others.
        by_status_only: It is none, so nothing but its status is judged.
        first_byte_milliseconds: From the request's last byte until the answer's first byte; None without an answer.
        total_milliseconds: From there until its last byte, or until the user went away, or its age in flight.
        identity: The request's id, the same in all its lines; empty where the router does not log it.
        server: The slot that answered, or was asked last; None where that is not known.
        empty: The answer has no text and calls no tool; None where it could not be read to its end.
        truncated: The answer has no final chunk, or the server gave it up; None like `empty`.
        repetition: Share of the text's pieces that occurred before in it; None where the text is short or unread.
    """

    started_at: float
    arm: Slot
    on_trial: bool
    fault: bool
    error: bool
    lost: bool
    cancelled: bool
    streaming: bool
    first_byte_milliseconds: float | None
    total_milliseconds: float
    identity: str = ""
    route: str = ""
    by_status_only: bool = False
    refused: bool = False
    in_flight: bool = False
    server: Slot | None = None
    empty: bool | None = None
    truncated: bool | None = None
    repetition: float | None = None

    @property
    def seen_at(self) -> float:
        """When its line was written, by the router's clock: seconds since 1970."""
        return self.started_at + self.total_milliseconds / 1000


class LogCursor(Frozen):
    """How far the access log has been read; survives its being put aside, and restarts of the reader.

    Attributes:
        inode: The file; 0 before the first.
        offset: Bytes of it that were read, whole lines.
    """

    inode: int = 0
    offset: int = 0


@dataclass
class AccessLog:
    """Reads an Envoy access log incrementally, whole lines only.

    Attributes:
        path: Of the log.
        slot_of_address: The slot of an upstream address.
        reopen: Tells the router to open its log again, once its file was moved or deleted.
        largest_bytes: A longer log is put aside, as `<name>.1`.
        behind: Whether the last read left lines unread.
    """

    path: Path
    slot_of_address: SlotOfAddress
    reopen: Callable[[], object] = lambda: None
    largest_bytes: int = 2**62
    behind: bool = False

    @property
    def aside(self) -> Path:
        """Where a long log is put."""
        return self.path.with_name(f"{self.path.name}.1")

    def end(self) -> LogCursor:
        """The cursor behind the last whole line."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as stream:
            found = os.fstat(stream.fileno())
            begin = max(0, found.st_size - _LONGEST_LINE_BYTES)
            stream.seek(begin)
            whole = stream.read(found.st_size - begin).rfind(b"\n") + 1
            return LogCursor(inode=found.st_ino, offset=begin + whole)
        return LogCursor()

    def recent(self, since: float, most_bytes: int = _RECENT_BYTES) -> list[ObservedRequest]:
        """Requests that started at or after `since` and ended, as far back as the newest bytes of the log go."""
        newest = _last_lines(self.path, most_bytes)
        lines = _last_lines(self.aside, most_bytes - len(newest)) + newest
        found = self._requests(lines.splitlines())
        return [request for request in found if request.started_at >= since and not request.in_flight]

    def read(self, cursor: LogCursor, most_bytes: int = 2**62) -> tuple[list[ObservedRequest], LogCursor]:
        """Requests written since `cursor`, and the cursor behind them.

        A log that was put aside is read to its end first; one that was truncated is read from its start. Of a log that
        somebody else moved, what was written since the last call is lost, and the router is told to open a new one.

        Args:
            cursor: Where an earlier call ended.
            most_bytes: Of the log that are read in one call; what is left is for the next one (see `behind`).
        """
        self.keep()
        lines, current = b"", _inode(self.path)
        if cursor.inode and cursor.inode == _inode(self.aside):
            reopened = current != 0 and self.path.stat().st_size > 0  # else the router may still write to it
            lines, cursor, self.behind = _lines(self.aside, cursor, most_bytes)
            if self.behind or not reopened:
                return list(self._requests(lines.splitlines())), cursor
            cursor = LogCursor(inode=current)
        elif cursor.inode != current:
            if cursor.inode:
                log.warning("the access log was moved, with lines that were not read yet", path=str(self.path))
                self._ask_to_reopen()
            cursor = LogCursor(inode=current)
        if current:
            more, cursor, self.behind = _lines(self.path, cursor, most_bytes)
            lines += more
        return list(self._requests(lines.splitlines())), cursor

    def keep(self) -> None:
        """Put a long log aside, and have the router open its log again. Reading does this too."""
        with contextlib.suppress(FileNotFoundError):  # the guard, or a controller, put it aside at the same moment
            if self.path.stat().st_size > self.largest_bytes:
                self.path.rename(self.aside)
        if not self.path.exists():
            self._ask_to_reopen()

    def _ask_to_reopen(self) -> None:
        """Ask the router to reopen its log; repeated at each read until the path is there."""
        try:
            self.reopen()
        except Transient as error:
            log.warning("the router cannot be told to reopen its log", reason=str(error))

    def _requests(self, lines: Iterable[bytes]) -> Iterator[ObservedRequest]:
        """The requests of the lines; a damaged line is counted and left out."""
        damaged = 0
        for line in lines:
            try:
                request = parse_line(line, self.slot_of_address)
            except ValueError:
                damaged += 1
                continue
            if request is not None:
                yield request
        if damaged:
            log.warning("damaged lines of the access log are ignored", lines=damaged, path=str(self.path))


def parse_line(line: bytes, slot_of_address: SlotOfAddress) -> ObservedRequest | None:
    """One line of the log; None for a request that reached no arm.

    Raises:
        ValueError: The line is damaged, or one of its numbers is none.
    """
    try:
        entry = json.loads(line.decode(errors="replace"), parse_constant=_finite)
        return _request(entry, slot_of_address)
    except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a line of an access log: {error}") from error


def _request(entry: Mapping[str, Any], slot_of_address: SlotOfAddress) -> ObservedRequest | None:
    cluster = str(entry.get("cluster"))
    arm = _SLOTS.get(plain_name(cluster).removesuffix("_grpc").removesuffix("_openai"))
    if arm is None:
        return None
    path = str(entry["path"] or "").partition("?")[0]
    in_flight = entry.get("type") == _IN_FLIGHT
    ending = "in flight" if in_flight else _ending(entry)
    server = slot_of_address(entry.get("host"))
    elsewhere = (_count(entry["attempts"]) or 0) > 1 or server != arm
    route = next((route for route in _ROUTES if path.endswith(route)), "")
    asking = _positive(entry.get("asked_ms")) or 0.0
    broken, refused = ending == "failed", ending == "refused"
    fault = broken or (ending == "answered" and elsewhere)
    has_text = entry.get("has_text") if route and ending in ("answered", "failed") else None
    read = has_text is not None and _count(entry["code"]) == HTTPStatus.OK
    reason = str(entry.get("finish_reason") or "")
    return ObservedRequest(
        started_at=_finite(entry["started_at"]),
        arm=arm,
        on_trial=cluster.endswith(FAILOVER_SUFFIX),
        fault=fault,
        error=fault or refused,
        lost=broken or refused,
        refused=refused,
        cancelled=ending == "abandoned",
        in_flight=in_flight,
        server=server,
        streaming=entry.get("stream") == "1",
        first_byte_milliseconds=_after(asking, entry.get("first_byte_ms")),
        total_milliseconds=_after(asking, entry.get("total_ms")) or 0.0,
        identity=str(entry.get("id") or ""),
        route=route,
        by_status_only=not route,
        empty=has_text != "1" and reason not in _CALLS_TOOLS if read else None,
        truncated=reason in _GIVEN_UP if read else None,
        repetition=_positive(entry.get("repetition")) if read else None,
    )


def _ending(entry: Mapping[str, Any]) -> Literal["answered", "failed", "refused", "abandoned"]:
    """How a request ended; a call of a method that is not offered was refused, for which gRPC has its own status."""
    code, status = _count(entry["code"]) or 0, entry.get("grpc_status")
    flags = set(str(entry.get("flags") or "-").split(",")) - {"-"}
    if flags & _CANCELLED_FLAGS:
        return "abandoned"
    inside = code == HTTPStatus.OK and entry.get("reported_error") is not None
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR or code == 0 or flags & _FAULT_FLAGS or inside:
        return "failed"
    if code >= HTTPStatus.BAD_REQUEST or status in _REFUSING_GRPC_STATUSES:
        return "refused"
    return "answered" if status in (None, 0) else "failed"


def _finite(value: Any) -> float:
    """A number, or text that holds one. Anything else raises TypeError: the line is damaged."""
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{value} is not a number")
    return found


def _after(asking: float, value: Any) -> float | None:
    """Milliseconds from the request's last byte: a slow upload is not the server's fault."""
    found = _positive(value)
    return None if found is None else max(0.0, found - asking)


def _positive(value: Any) -> float | None:
    """Raises ValueError for a time or a share that cannot be."""
    if value is None:
        return None
    found = _finite(value)
    if found < 0:
        raise ValueError(f"{value} is negative")
    return found


def _count(value: Any) -> int | None:
    found = _positive(value)
    return None if found is None else int(found)


def _inode(path: Path) -> int:
    """0 where there is no file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _lines(path: Path, cursor: LogCursor, most_bytes: int) -> tuple[bytes, LogCursor, bool]:
    """Whole lines after the cursor, the cursor behind them, and whether there are more; too long ones are left out."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        offset = cursor.offset if cursor.offset <= size else 0
        stream.seek(offset)
        data = stream.read(min(size - offset, most_bytes))
        whole = data[: data.rfind(b"\n") + 1]
        too_long = not whole and len(data) >= min(most_bytes, _LONGEST_LINE_BYTES)
        offset += len(data if too_long else whole)
        stream.seek(offset)
        more = b"\n" in stream.read(min(size - offset, _LONGEST_LINE_BYTES))
    return whole, LogCursor(inode=cursor.inode, offset=offset), more


def _last_lines(path: Path, most_bytes: int) -> bytes:
    """The last whole lines of a file; empty if there is no file."""
    if most_bytes <= 0 or not path.exists():
        return b""
    begin = max(0, path.stat().st_size - most_bytes)
    lines = _lines(path, LogCursor(offset=begin), most_bytes)[0]
    return lines[lines.find(b"\n") + 1 :] if begin else lines
