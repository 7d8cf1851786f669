"""Waiting for what only looking again and again tells."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float, *, every: float = 0.05) -> bool:
    """Poll a condition, once at least, until it holds; returns whether it did within so many seconds.

    Args:
        condition: What is waited for.
        seconds: Longest wait.
        every: Seconds between two looks.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True
