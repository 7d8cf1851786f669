"""The protocol between a client process and its parent over two pipes: frames of a kind, a length and bytes."""

from __future__ import annotations

import os
import struct
from enum import IntEnum

_HEAD = struct.Struct("<BQ")
_PIECE = 1 << 20


class Kind(IntEnum):
    """What a frame is.

    Attributes:
        TARGET: To the process: where requests go, JSON.
        SHARE: To the process: what it sends in the next window, JSON.
        START: To the process: when the window starts, JSON.
        READY: From the process: it can start.
        ROWS: From the process: packed rows of the window that has ended.
        REST: From the process: what it says beside its rows, JSON; the window's last frame.
    """

    TARGET = 1
    SHARE = 2
    START = 3
    READY = 4
    ROWS = 5
    REST = 6


def write_frame(descriptor: int, kind: Kind, data: bytes | memoryview = b"") -> None:
    """Write a frame.

    Raises:
        BrokenPipeError: The other process has ended.
    """
    os.write(descriptor, _HEAD.pack(kind, len(data)))
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:_PIECE]) :]


def read_frame(descriptor: int) -> tuple[Kind, bytes]:
    """Read a frame.

    Raises:
        EOFError: The other process has ended.
    """
    kind, length = _HEAD.unpack(_read(descriptor, _HEAD.size))
    return Kind(kind), _read(descriptor, length)


def _read(descriptor: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length:
        piece = os.read(descriptor, min(length, _PIECE))
        if not piece:
            raise EOFError("the other process has ended")
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
