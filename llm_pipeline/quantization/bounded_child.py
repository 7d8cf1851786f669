"""Running a function in a child process with limits of time and memory: for code of a repository, like its templates.

A chat template is a program. Jinja's sandbox keeps it from files and from Python's insides, but not from loops and
strings without an end.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from llm_pipeline.base.errors import Terminal

T = TypeVar("T")


class TookTooMuch(Terminal):
    """The function used more time or memory than it was given."""


class RaisedInChild(Terminal):
    """The function raised an exception; the message has its type and its text."""


def run_in_child(function: Callable[[], T], *, seconds: float, memory_bytes: int) -> T:
    """The result of a function that runs in a fork of this process, whose state it cannot change.

    Args:
        function: What it returns must be picklable.
        seconds: Longest time.
        memory_bytes: Most address space beyond what this process has now.

    Raises:
        TookTooMuch: It ran longer, or needed more.
        RaisedInChild: It raised an exception.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(function, theirs, _limits(seconds, memory_bytes)), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise TookTooMuch(f"not done after {seconds:g} s")
        kind, value = ours.recv()
    except EOFError as error:
        raise TookTooMuch("its process was killed for its time or memory") from error
    finally:
        child.kill()
        child.join()
        ours.close()
    if kind == "memory":
        raise TookTooMuch(f"it needs more than {memory_bytes / 2**20:.0f} MiB")
    if kind == "raised":
        raise RaisedInChild(str(value))
    result: T = value
    return result


def _limits(seconds: float, memory_bytes: int) -> dict[int, int]:
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return {resource.RLIMIT_AS: address_space + memory_bytes, resource.RLIMIT_CPU: int(seconds) + 1}


def _run(function: Callable[[], Any], answer: Connection, limits: dict[int, int]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the stage's own handler ends leases that are the parent's
    for what, most in limits.items():
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        outcome: tuple[str, Any] = ("result", function())
    except MemoryError:
        outcome = ("memory", None)
    except Exception as error:  # noqa: BLE001 - it crosses the process: the parent raises it as one of ours
        outcome = ("raised", f"{type(error).__name__}: {error}"[:2000])
    answer.send(outcome)
