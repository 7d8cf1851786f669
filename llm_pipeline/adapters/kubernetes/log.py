"""A pod's log with offsets that survive rotation and reconnection: the offset is a time, not a place in a file.

The kubelet stamps every line with nanoseconds and throws the oldest lines away when a log is rotated, so a count of
bytes would skip or repeat. An offset is the last line's time and how many lines with that very time were read.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z ")
_LINES_PER_NANOSECOND = 1024
_NANOSECONDS = 10**9


def since(offset: int) -> str | None:
    """The offset as the API's `sinceTime`, rounded down to whole seconds; None for the beginning."""
    if not offset:
        return None
    seconds = offset // _LINES_PER_NANOSECOND // _NANOSECONDS
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def lines_after(text: str, offset: int) -> tuple[list[str], int]:
    """Whole lines of a log read with time stamps that come after an offset, and the offset to go on from."""
    last, count = divmod(offset, _LINES_PER_NANOSECOND)
    lines, seen = [], 0
    for line in text.split("\n")[:-1]:
        stamp = _STAMP.match(line)
        if stamp is None:  # the API's own remark, not a line of the container
            continue
        time = _nanoseconds(stamp)
        if time == last:
            seen += 1
        if time < last or (time == last and seen <= count):
            continue
        lines.append(line[stamp.end() :])
        if time != last:
            last, count, seen = time, 0, 1
        count += 1
    return lines, last * _LINES_PER_NANOSECOND + count


def _nanoseconds(stamp: re.Match[str]) -> int:
    seconds = datetime.fromisoformat(f"{stamp[1]}+00:00").timestamp()
    return int(seconds) * _NANOSECONDS + int((stamp[2] or "").ljust(9, "0"))
