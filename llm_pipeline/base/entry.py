"""The outer edge of every program of this package: every failure ends in one error and the right exit code.

    @entry_point
    def main(arguments: Sequence[str] | None = None) -> int:
        options = ArgumentParser(...).parse_args(arguments)

    if __name__ == "__main__":
        raise SystemExit(main())

| what happened | exit code |
|---|---|
| the program returned a code | that code |
| a `PipelineError` | its own: 4 for bad input, 5 for infrastructure |
| wrong arguments | 4 |
| any other exception | 5, with its traceback in the log |
| Ctrl-C, SIGTERM | 130, 143, as shells have it |
| nobody reads stdout any more | 141 |
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn, ParamSpec

from llm_pipeline.base.errors import ExitCode, as_pipeline_error, is_unexpected, runbook
from llm_pipeline.base.logging import ReadableFormatter
from llm_pipeline.base.untrusted_text import quoted

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
CLOSED_PIPE = 128 + signal.SIGPIPE

_P = ParamSpec("_P")

log = logging.getLogger(__name__)


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose usage errors are bad input (4): argparse's own 2 would mean INCONCLUSIVE."""

    def error(self, message: str) -> NoReturn:
        """Write the usage and the mistake, and end the program."""
        self.print_usage(sys.stderr)
        self.exit(ExitCode.BAD_INPUT, f"{self.prog}: error: {message} ({runbook('ConfigError')})\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the program; `entry_point` tells this from a library that ends it."""
        if message:
            sys.stderr.write(message)
        raise _Ended(status)


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised like Ctrl-C so that `with` and `finally` blocks stop what was started."""


class _Ended(SystemExit):
    """The parser has said all: help, the version, or a usage error."""


def entry_point(main: Callable[_P, int | None]) -> Callable[_P, int]:
    """Decorate the function that a console script or a `__main__` module runs; it then returns the exit code."""

    @functools.wraps(main)
    def run(*arguments: _P.args, **options: _P.kwargs) -> int:
        code: int
        try:
            with _threads_told():
                code = main(*arguments, **options) or ExitCode.GO
        except _Ended:
            if (trouble := _flush()) is not None:
                return trouble
            raise
        except KeyboardInterrupt as interruption:
            terminated = isinstance(interruption, Terminated)
            kind = "terminated" if terminated else "interrupted"
            _write_error(kind, "what was running was stopped; the same command goes on from here")
            code = TERMINATED if terminated else INTERRUPTED
        except SystemExit as error:
            code = _report(RuntimeError(f"a library ended the program with {error.code!r}"), error)
        except Exception as error:  # noqa: BLE001 - the edge of the program
            code = _report(error)
        trouble = _flush()
        return code if trouble is None else trouble

    return run


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT and `Terminated` on SIGTERM, as long as the block lasts.

    Also where a parent had them ignored, as a shell does for a job in the background. Only the main thread may set
    handlers; in any other this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _terminate}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def _report(error: Exception, cause: BaseException | None = None) -> int:
    """Tell people what went wrong; the code to exit with."""
    if isinstance(error, BrokenPipeError) and _nobody_reads_stdout():
        _discard_output()
        return CLOSED_PIPE
    if is_unexpected(error):
        root = logging.getLogger()
        if not root.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(ReadableFormatter())
            root.addHandler(handler)
        log.error("an unexpected exception", exc_info=cause or error)
    known = as_pipeline_error(error)
    _write_error("error", known.told)
    return known.exit_code


@contextlib.contextmanager
def _threads_told() -> Iterator[None]:
    """Log what ends a thread, as the program's other faults are logged: Python writes it to stderr as it is."""
    before, threading.excepthook = threading.excepthook, _log_thread
    try:
        yield
    finally:
        threading.excepthook = before


def _log_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
        name = failed.thread.name if failed.thread else "unknown"
        log.error("the thread %s ended by an unexpected exception", name, exc_info=failed.exc_value)


def _write_error(kind: str, text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it: the exit code still tells
        sys.stderr.write(f"{kind}: {quoted(text)}\n")
        sys.stderr.flush()


def _flush() -> int | None:
    """Write what stdout still holds; the exit code if that is not possible, None if it is."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError) as error:  # of one that is closed
        _discard_output()
        if isinstance(error, BrokenPipeError):
            return CLOSED_PIPE
        known = as_pipeline_error(error, where="stdout")
        _write_error("error", known.told)
        return known.exit_code
    return None


def _nobody_reads_stdout() -> bool:
    """Whether a broken pipe is that of stdout; else it is a connection's."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except (OSError, ValueError, AttributeError):
        return False
    return bool(poll.poll(0))  # an error or a hang-up: nothing else was asked for


def _discard_output() -> None:
    """Let Python's own flush at the end succeed, which would complain and change the exit code (to 120)."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
