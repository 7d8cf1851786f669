"""The protocol between a client process and its parent over two pipes: frames of a kind, a length and bytes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.serving.completions import COMPLETIONS_PATH, GenerationParameters, request_body

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


@dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        host: Name or address.
        path: What comes before `/v1`; empty for nothing.
        model: Its name at the server; None for one of ours, which serves one.
        tls: Whether the connection is encrypted.
        ca_file: Certificates that the server's is checked against; None for the system's.
        headers: Sent with every request.
        timeout_seconds: Longest time for one whole answer, from its send.
    """

    host: str
    port: int
    path: str
    model: str | None = None
    tls: bool = False
    ca_file: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 60.0

    def head(self) -> bytes:
        """What stands before the length of the body in a request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        fields = {"Host": f"{host}:{self.port}", "Content-Type": "application/json", **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        path = f"{self.path}{COMPLETIONS_PATH}"
        return f"POST {path} HTTP/1.1\r\n{lines}Content-Length: ".encode("latin-1")


def load_body(request: LoadRequest, model: str | None) -> bytes:
    """The JSON body of a request."""
    asked = GenerationParameters(request.prompt, request.maximum_tokens, ignore_eos=True)
    return json.dumps(request_body(asked, model, stream=True)).encode()


_FIELDS = ("prompt", "maximum_tokens", "cancel_after_tokens")


@dataclass(frozen=True)
class Share:
    """Requests `first`, `first + step`, ... of a window.

    Attributes:
        arrivals: Scheduled arrival of each, seconds from the start of the window; None in a closed loop.
        users: Of a closed loop, in this process.
        duration_seconds: Length of the window.
    """

    first: int
    step: int
    requests: Sequence[LoadRequest]
    arrivals: Sequence[float] | None
    users: int
    duration_seconds: float

    def numbered(self) -> Iterator[tuple[int, LoadRequest]]:
        """The requests, each with its place in the traffic."""
        for place, request in enumerate(self.requests):
            yield self.first + place * self.step, request

    def encode(self) -> bytes:
        """As JSON, a list for each field of the requests."""
        fields = {name: [getattr(request, name) for request in self.requests] for name in _FIELDS}
        document = {
            "first": self.first,
            "step": self.step,
            "requests": fields,
            "arrivals": self.arrivals,
            "users": self.users,
            "duration_seconds": self.duration_seconds,
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, data: bytes) -> Share:
        """A share that was encoded."""
        document: dict[str, Any] = json.loads(data)
        fields = document.pop("requests")
        requests = [LoadRequest(*values) for values in zip(*(fields[name] for name in _FIELDS), strict=True)]
        return cls(requests=requests, **document)


def shares(traffic: Traffic, processes: int) -> list[Share]:
    """The traffic of a window, dealt out in turn; a closed loop has no more shares than users."""
    count = processes if traffic.arrivals is not None else min(processes, traffic.concurrency)
    return [
        Share(
            first=first,
            step=count,
            requests=traffic.requests[first::count],
            arrivals=None if traffic.arrivals is None else traffic.arrivals[first::count].tolist(),
            users=len(range(first, traffic.concurrency, count)),
            duration_seconds=traffic.duration_seconds,
        )
        for first in range(count)
    ]
