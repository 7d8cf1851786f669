"""What ends a stage that hangs: its own process first, and whoever waits for it where that cannot.

A stage that hangs (a driver, a network file system, a server that never answers) would hold its GPUs and its release
for ever. Its process ends itself, so that the limit holds in every runner and without whoever started it. One that is
stopped, or stuck where Python does not run, writes no more line: `runners/runners.py` ends it from outside.
`release/time_limits.py` says how long a stage may take.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from llm_pipeline.base.errors import StageOutOfTime
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import last_progress
from llm_pipeline.base.quantities import duration
from llm_pipeline.release.contract import TimeLimit

GRACE_SECONDS = 120.0
"""How long a stage may take to end properly once its time is over."""

_LOOKS = 4
"""How often it is looked in the time that a stage may stand still: it does not tell when it begins to get on."""

log = get_logger(__name__)


class OutOfTime(BaseException):
    """Raised wherever the stage is when its time is over, so that its `with` blocks end properly."""


@contextmanager
def ended_by(limit: TimeLimit, give_up: Callable[[StageOutOfTime], None]) -> Iterator[None]:
    """End the block when its time is over. Only for the main thread of a process.

    Args:
        limit: How long it may take; `base.progress` says when it last got on.
        give_up: Called in another thread if the block has still not ended `GRACE_SECONDS` later: native code that
            never returns to Python sees no signal. It must end the process.

    Raises:
        OutOfTime: The time is over.
    """
    ended, main = threading.Event(), threading.get_ident()
    clock = _Clock(limit)

    def watch() -> None:
        next_line = time.monotonic() + limit.seconds
        while (left := clock.seconds_left()) > 0:
            if ended.wait(min(left, limit.stall_seconds / _LOOKS)):
                return
            if time.monotonic() >= next_line and clock.seconds_left() > 0:  # whoever watches from outside hears it
                log.info("it takes longer than its time limit, and goes on for it makes progress", limit=limit.basis)
                next_line += limit.seconds
        signal.pthread_kill(main, signal.SIGALRM)
        if not ended.wait(GRACE_SECONDS):
            give_up(clock.error())

    def time_is_over(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise OutOfTime(clock.error())

    watchdog = threading.Thread(target=watch, name="time limit", daemon=True)
    before = signal.signal(signal.SIGALRM, time_is_over)
    watchdog.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        ended.set()
        watchdog.join(1.0)
        signal.signal(signal.SIGALRM, before)


def out_of_time(limit: TimeLimit, *, ran: float, silent: float | None) -> StageOutOfTime:
    """The error of a stage whose time is over.

    Args:
        limit: Its limit.
        ran: Seconds since its start.
        silent: Seconds since it last got on; None if it never said so.
    """
    if ran >= limit.longest_seconds:
        what = f"its time limit of {duration(limit.longest_seconds)}, the longest of any stage"
    elif silent is None:
        what = f"its time limit of {duration(limit.seconds)} ({limit.basis or 'the longest of any stage'})"
    else:
        what = f"its time limit of {duration(limit.stall_seconds)} without any progress"
    return StageOutOfTime(
        f"the stage was stopped after {what}",
        hint=f"look at the last lines of its log; raise {limit.setting} if it was still at work",
    )


class _Clock:
    """How much of its time a stage has left."""

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit
        self._began = time.monotonic()

    def seconds_left(self) -> float:
        """Until it is over, if it does not get on before."""
        latest = self._progress()
        over = self._began + self._limit.seconds
        if latest is not None:
            over = latest + self._limit.stall_seconds
        return min(over, self._began + self._limit.longest_seconds) - time.monotonic()

    def error(self) -> StageOutOfTime:
        """What to say when it is over."""
        now, latest = time.monotonic(), self._progress()
        return out_of_time(self._limit, ran=now - self._began, silent=None if latest is None else now - latest)

    def _progress(self) -> float | None:
        latest = last_progress()
        return latest if latest is not None and latest > self._began else None
