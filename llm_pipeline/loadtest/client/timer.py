"""A timer of the kernel's (Linux timerfd): wakes an event loop within tens of microseconds of a moment.

Event loops round their own timers to milliseconds, and polling the clock between them would burn the core that the
answers are read on. Python has `os.timerfd_create` from 3.13 on; this is the same through libc.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import ClassVar

_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_: ClassVar = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Setting(ctypes.Structure):
    _fields_: ClassVar = [("interval", _Timespec), ("value", _Timespec)]


class MonotonicTimer:
    """Becomes readable at a moment of CLOCK_MONOTONIC; one moment at a time.

    Attributes:
        descriptor: To wait for.

    Raises:
        OSError: The kernel has no timer left.
    """

    def __init__(self) -> None:
        self.descriptor: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._setting = _Setting()

    def wake_at(self, moment: float) -> None:
        """Become readable at `moment`, at once if it has passed.

        Raises:
            OSError: The kernel refuses.
        """
        seconds = int(moment)
        value = self._setting.value
        value.seconds, value.nanoseconds = seconds, int((moment - seconds) * 1e9)
        if _libc.timerfd_settime(self.descriptor, _ABSOLUTE, ctypes.byref(self._setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Be no longer readable."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)
