"""The demo's output on the terminal: one line a fact, with the time since it started."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence

from llm_pipeline.base.logging import write_readable_lines
from llm_pipeline.base.text_table import underlined


class Console:
    """Writes lines to stdout as they happen."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def title(self, text: str) -> None:
        """Write a heading."""
        self._write(f"\n{text}\n{'-' * len(text)}")

    def step(self, text: str) -> None:
        """Write what happened, with the time since the start."""
        self._write(f"{time.monotonic() - self._started:7.1f} s  {text}")

    def line(self, text: str = "") -> None:
        """Write a line without the time."""
        self._write(text)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write rows in aligned columns below their header."""
        for line in underlined(header, rows):
            self._write(line)

    def follow_logs(self) -> None:
        """Show the package's own log records as steps."""
        write_readable_lines(_StepHandler(self))
        logging.getLogger("llm_pipeline.stage").setLevel(logging.WARNING)

    def _write(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class _StepHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.step(self.format(record))
