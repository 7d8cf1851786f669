"""The most GPU memory that a build's process and its workers take, seen from outside by `nvidia-smi`."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from typing import Self

_INTERVAL_SECONDS = 1.0
_TIMEOUT_SECONDS = 30.0


class GpuMemoryWatch:
    """Looks at the visible GPUs once a second while it is entered.

        with GpuMemoryWatch() as watch:
            run_tool(...)
        watch.peak_bytes

    It counts what came on top of what was in use before, so that a build needs its GPUs for itself. A peak shorter
    than the interval can be missed; TensorRT-LLM allocates its pools once and keeps them.

    Attributes:
        peak_bytes: The most on any one GPU; 0 if `nvidia-smi` does not answer.
    """

    def __init__(self, interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self.peak_bytes = 0
        self._interval = interval_seconds
        self._before: tuple[int, ...] = ()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._before = _used_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=_TIMEOUT_SECONDS)

    def _watch(self) -> None:
        while not self._ended.wait(self._interval):
            used = _used_bytes()
            if len(used) == len(self._before):
                taken = (now - before for now, before in zip(used, self._before, strict=True))
                self.peak_bytes = max(self.peak_bytes, *taken, 0)


def _used_bytes() -> tuple[int, ...]:
    """Memory in use by GPU; empty when the driver does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
        return tuple(int(float(line) * 2**20) for line in answer.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
