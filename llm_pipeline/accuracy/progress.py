"""How far an evaluation is, in the log: a line now and then, with the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable

from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts requests and says how far they are, at most every ten seconds.

    Args:
        total: Requests of the whole evaluation.
        clock: Seconds, from any start.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._done = self._counted = 0
        self._started = self._reported = clock()

    def skip(self, requests: int) -> None:
        """Requests that an earlier attempt made: done, and no measure of speed."""
        self._done += requests

    def advance(self, requests: int) -> None:
        """Requests that were finished just now."""
        self._done, self._counted = self._done + requests, self._counted + requests
        now = self._clock()
        if now - self._reported < _SECONDS_BETWEEN_LINES:
            return
        self._reported = now
        per_second = self._counted / (now - self._started)
        left = max(0, self._total - self._done)
        log.info(
            f"evaluating: {self._done:,} of {self._total:,} requests",
            per_second=round(per_second, 1),
            seconds_left_at_most=round(left / per_second),
        )
