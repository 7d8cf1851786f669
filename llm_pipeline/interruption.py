"""Interruption: SIGINT and SIGTERM both end a command the same, orderly way."""

from __future__ import annotations

import signal
from types import FrameType


def interrupt_on_termination() -> None:
    """Raise KeyboardInterrupt on SIGINT and SIGTERM, also where a parent had them ignored (a job in the background)."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
