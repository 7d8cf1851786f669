"""Runs a command that lets everything else on the machine go first: `python tests/yielding.py COMMAND ...`.

`nice` does not do that alone: where Linux shares a CPU between sessions first (`sched_autogroup`), niceness counts
among the processes of one session only, and servers have sessions of their own. So the command gets one, too, and the
lowest priority both for itself and for its session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

LOWEST = 19


def run(command: list[str]) -> int:
    """The exit code of the command; what would interrupt or end us ends it and all of its session's main group."""
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=_yield)  # noqa: PLW1509 - we have one thread
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.killpg(child.pid, received))
    code = child.wait()
    return code if code >= 0 else 128 - code


def _yield() -> None:
    os.nice(LOWEST)
    with contextlib.suppress(OSError):  # no such file where sessions do not count
        Path("/proc/self/autogroup").write_text(str(LOWEST), encoding="ascii")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
