"""What a load test sends: requests, and when. Pure data, drawn by `workload.py` and sent by `measure.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request.

    Attributes:
        prompt: Its text.
        maximum_tokens: `max_tokens`; exactly so many must come.
        cancel_after_tokens: The user leaves after so many; 0 for never.
    """

    prompt: str
    maximum_tokens: int
    cancel_after_tokens: int = 0


@dataclass(frozen=True)
class Traffic:
    """Requests with their times, or requests that a number of users send one after another.

    Attributes:
        requests: In order.
        arrivals: Scheduled arrival of each, seconds from the start of the window, rising; None in a closed loop.
        concurrency: Users of a closed loop, each of whom sends when the last answer is there; 0 in an open loop.
        duration_seconds: Length of the window: a closed loop starts no request after it.
    """

    requests: Sequence[LoadRequest]
    duration_seconds: float
    arrivals: NDArray[np.float64] | None = None
    concurrency: int = 0

    def between(self, start: float, end: float) -> Traffic:
        """The part of an open loop that arrives from one moment to another, as a window of its own."""
        assert self.arrivals is not None  # noqa: S101 - only an open loop has a schedule
        first, last = np.searchsorted(self.arrivals, (start, end)).tolist()
        return Traffic(self.requests[first:last], end - start, self.arrivals[first:last] - start)

    def dealt(self, processes: int) -> list[tuple[range, Traffic]]:
        """Parts of a window, dealt out in turn, each with the places of its requests; no more parts than users."""
        users, count = self.concurrency, len(self.requests)
        if self.arrivals is None:
            processes = min(processes, users)
        return [
            (
                range(first, count, processes),
                Traffic(
                    requests=self.requests[first::processes],
                    duration_seconds=self.duration_seconds,
                    arrivals=None if self.arrivals is None else self.arrivals[first::processes],
                    concurrency=len(range(first, users, processes)),
                ),
            )
            for first in range(processes)
        ]

    @property
    def offered_per_second(self) -> float | None:
        """Requests a second that the schedule asks for; None in a closed loop."""
        return None if self.arrivals is None else len(self.requests) / self.duration_seconds
