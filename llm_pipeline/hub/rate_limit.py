"""A limit of bytes per second that all connections of a download share."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class RateLimit:
    """A token bucket that never holds more than what is due: no bursts, at any moment after any pause.

    Args:
        bytes_per_second: The limit; None for none.
        clock: Seconds that only go forward.
    """

    def __init__(self, bytes_per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._lock = Lock()
        self._paid_until = 0.0

    def take(self, count: int) -> float:
        """Account for bytes that came; returns the seconds to wait before asking for more."""
        if self._bytes_per_second is None:
            return 0.0
        with self._lock:
            now = self._clock()
            self._paid_until = max(self._paid_until, now) + count / self._bytes_per_second
            return self._paid_until - now
