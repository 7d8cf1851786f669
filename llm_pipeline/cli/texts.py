"""What commands have in common: sentences of help, lines on the terminal, and files for `--output`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, unless_io
from llm_pipeline.base.untrusted_text import one_line


def sentence(summary: str) -> str:
    """A summary as a sentence; names in it keep their capitals."""
    return f"{summary[:1].upper()}{summary[1:]}."


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout; no text in them makes another one, or moves the cursor."""
    for line in lines:
        sys.stdout.write(f"{one_line(line)}\n")
    sys.stdout.flush()


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write texts by their relative path into a directory, which is made.

    Raises:
        ConfigError: It is no place to write to.
        Transient: The disk is full, or fails.
    """
    try:
        for name, content in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        wrong = ConfigError(f"cannot be written: {error.strerror}", where=str(error.filename or directory))
        raise unless_io(error, wrong) from error
