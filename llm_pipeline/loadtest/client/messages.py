"""What the parent tells a client process: where requests go, and which of them it sends in a window."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.serving.completions import COMPLETIONS_PATH, GenerationParameters, request_body


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
