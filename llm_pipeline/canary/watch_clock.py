"""How long a step was watched, whatever the wall clock does.

A wall clock may jump, forwards over a whole bake or backwards to before the step began. Only differences of this
process's monotonic clock count, bounded look by look, and their sum is kept in the canary's record.
"""

from __future__ import annotations

import time

from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

LONGEST_LOOKS = 10.0
"""A single look counts for at most so many times the time between two: a process that was frozen watched nothing."""

JUMP_SECONDS = 2.0
"""The wall clock may fall behind ours by so much before it is taken for a jump."""


class WatchClock:
    """Counts the time between looks of one process."""

    def __init__(self) -> None:
        self._last: float | None = None

    def start(self) -> None:
        """The first look is timed from now on."""
        self._last = time.monotonic()

    def look(self, look_seconds: float) -> float:
        """Seconds watched since the last look; a process that goes on with another one's step counts one look."""
        now, last = time.monotonic(), self._last
        self._last = now
        return look_seconds if last is None else min(now - last, LONGEST_LOOKS * look_seconds)

    def began(self, step_began_at: float, watched_seconds: float) -> float:
        """When the step began, by the wall clock as it is now: requests are stamped with that one.

        A clock that jumped backwards would make every request look older than the step, and so leave even the
        immediate guard without data.
        """
        latest = time.time() - watched_seconds
        if latest >= step_began_at - JUMP_SECONDS:
            return step_began_at
        log.warning("the clock jumped backwards", seconds=round(step_began_at - latest, 1))
        return latest
