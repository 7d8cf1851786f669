"""A wall clock of its own for a run and all its processes, Envoy included, that can be set while they go on."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
_FILE = "STEPPED_CLOCK"


class SteppedClock:
    """The clock of the processes that share this one's environment."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset_seconds = 0

    def step(self, seconds: int) -> None:
        """Set it forwards, or back."""
        self.offset_seconds += seconds
        with self._file.open("r+b") as stream:
            stream.write(struct.pack("q", self.offset_seconds))


def under_stepped_clock(root: Path, arguments: Sequence[str]) -> int | None:
    """Run this program again with a clock of its own; None where there is no compiler to make one.

    Programs that are started beside the interpreter are found beside it there, too: Envoy, which inherits nothing.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library, file = root / "stepped_clock.so", root / "seconds"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE], check=True)
    file.write_bytes(struct.pack("q", 0))
    clock = {"LD_PRELOAD": str(library), _FILE: str(file)}
    python = _beside(root / "environment", clock)
    return subprocess.run([python, *arguments], check=False, env={**os.environ, **clock}).returncode


def clock_of_this_run() -> SteppedClock | None:
    """The clock that this process was started under."""
    return SteppedClock(Path(os.environ[_FILE])) if _FILE in os.environ else None


def _beside(environment: Path, variables: dict[str, str]) -> Path:
    """An interpreter like this one, with an Envoy beside it that has these variables."""
    programs, ours = environment / "bin", Path(sys.executable)
    programs.mkdir(parents=True)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", environment)
    (environment / "lib").symlink_to(Path(sys.prefix) / "lib")
    python, envoy = programs / "python", programs / "envoy"
    python.symlink_to(ours.resolve())
    settings = " ".join(f"{name}={value}" for name, value in variables.items())
    envoy.write_text(f'#!/bin/sh\nexec env {settings} {ours.with_name("envoy")} "$@"\n')
    envoy.chmod(0o755)
    return python
