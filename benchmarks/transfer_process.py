"""Processes that are timed: wall time, processor time and peak memory of each, ours and the peer's in turn."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_STARTER = Path(__file__).with_name("transfer_timed.py")


@dataclass(frozen=True)
class Measured:
    """One process from start to end, with all that it started and waited for.

    Attributes:
        seconds: Wall time.
        cpu_seconds: Processor time, user and system.
        peak_bytes: The largest resident memory of one of its processes.
        output: What it wrote to its standard output.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str


@dataclass
class Compared:
    """The same work by us and by a peer, several times."""

    ours: list[Measured] = field(default_factory=list)
    peer: list[Measured] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Our throughput as a share of the peer's: more than 1 is faster."""
        return seconds(self.peer) / seconds(self.ours)

    @property
    def peak_bytes(self) -> int:
        """Our largest resident memory in any of the runs."""
        return max(run.peak_bytes for run in self.ours)


def seconds(runs: Sequence[Measured]) -> float:
    """Median wall time."""
    return statistics.median(run.seconds for run in runs)


def compare(rounds: int, ours: Callable[[], Measured], peer: Callable[[], Measured]) -> Compared:
    """Run both in turn, so that a slow minute of the machine meets both."""
    compared = Compared()
    for _ in range(rounds):
        compared.ours.append(ours())
        compared.peer.append(peer())
    return compared


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Measured:
    """Run a command to its end, after all earlier writes have reached the disk.

    Raises:
        RuntimeError: It fails; the message ends with what it wrote last.
    """
    os.sync()
    with tempfile.TemporaryDirectory(prefix="bench-timed-") as place:
        figures, output, errors = (Path(place) / name for name in ("figures.json", "output", "errors"))
        starter = [sys.executable, "-I", "-S", str(_STARTER), str(figures), *command]
        with output.open("wb") as out, errors.open("wb") as err:
            code = _run_in_own_group(starter, out, err, os.environ | dict(environment or {}))
        if code:
            raise RuntimeError(f"{command[0]} ended with {code}:\n{errors.read_text(errors='replace')[-2000:]}")
        return Measured(**json.loads(figures.read_text()), output=output.read_text())


def _run_in_own_group(command: Sequence[str], out: IO[bytes], err: IO[bytes], environment: Mapping[str, str]) -> int:
    process = subprocess.Popen(list(command), stdout=out, stderr=err, env=environment, start_new_session=True)
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # we were interrupted
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
