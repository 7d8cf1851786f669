"""What ends a stage that takes longer than its request allows (`release/time_limits.py` says how long that is).

A stage that hangs (a driver, a network file system, a server that never answers) would hold its GPUs and its release
for ever. Its process ends itself, so that the limit holds in every runner and without whoever started it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

GRACE_SECONDS = 120.0
"""How long a stage may take to end properly once its time is over."""


class OutOfTime(BaseException):
    """Raised wherever the stage is when its time is over, so that its `with` blocks end properly."""


@contextmanager
def ended_after(seconds: float, give_up: Callable[[], None]) -> Iterator[None]:
    """End the block when its time is over. Only for the main thread of a process.

    Args:
        seconds: Longest time of the block.
        give_up: Called in another thread if the block has still not ended `GRACE_SECONDS` later: native code that
            never returns to Python sees no signal. It must end the process.

    Raises:
        OutOfTime: The time is over.
    """
    watchdog = threading.Timer(seconds + GRACE_SECONDS, give_up)
    watchdog.daemon = True
    watchdog.start()
    before = signal.signal(signal.SIGALRM, _time_is_over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        watchdog.cancel()


def _time_is_over(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise OutOfTime
