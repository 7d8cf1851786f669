"""One client process's share of a window: every n-th request, as a document that is sent to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llm_pipeline.loadtest.traffic import LoadRequest, Traffic

_FIELDS = ("prompt", "maximum_tokens", "stream", "ignore_eos", "priority", "cancel_after_tokens")


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
