"""The client processes as their parent sees them: started, told what to send and when, and read as they end."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import IO, Self

import numpy as np

from llm_pipeline.base.errors import ConfigError, ExitCode, PipelineError, Transient
from llm_pipeline.base.plain_environment import plain_environment
from llm_pipeline.loadtest.client.messages import Kind, Share, Target, read_frame, write_frame
from llm_pipeline.loadtest.client.rows import RowReader
from llm_pipeline.loadtest.records import Fault

_LEAD_SECONDS = 0.05  # from the word to all processes to the start of the window
_PREPARE_SECONDS = 60.0
_GRACE_SECONDS = 30.0
_STOP_SECONDS = 2.0
_SHOWN_BYTES = 2000


class ClientProcess:
    """One client process. Use `Children`."""

    def __init__(self) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._child = subprocess.Popen(
            [sys.executable, "-m", "llm_pipeline.loadtest.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=plain_environment(),  # header values go through the pipe
        )
        assert self._child.stdin is not None  # noqa: S101 - for the type
        assert self._child.stdout is not None  # noqa: S101
        self._writes, self.reads = self._child.stdin.fileno(), self._child.stdout.fileno()

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._child.pid

    def say(self, kind: Kind, data: bytes) -> None:
        """Send it a message.

        Raises:
            ConfigError: It cannot run in this interpreter.
            Transient: It has ended.
        """
        try:
            write_frame(self._writes, kind, data)
        except BrokenPipeError as error:
            raise self.failure() from error

    def hear(self) -> tuple[Kind, bytes]:
        """Its next message.

        Raises:
            ConfigError: It cannot run in this interpreter.
            Transient: It has ended.
        """
        try:
            return read_frame(self.reads)
        except EOFError as error:
            raise self.failure() from error

    def failure(self) -> PipelineError:
        """Why it ended, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_STOP_SECONDS)  # its own exit code, if any, says what went wrong
        self.stop()
        self._errors.seek(0)
        said = self._errors.read()[-_SHOWN_BYTES:].decode(errors="replace").strip()
        if self._child.returncode == ExitCode.BAD_INPUT:
            return ConfigError("the load test's client cannot run here", where="client process", hint=said)
        return Transient(
            f"a client process ended (exit code {self._child.returncode}), and its requests with it",
            where=f"client process {self.pid}",
            hint=said or "killed, or out of memory? run the load test again",
        )

    def stop(self) -> None:
        """Kill the process at once: it holds nothing that must be saved."""
        self._child.kill()
        self._child.wait(_STOP_SECONDS)

    def close(self) -> None:
        """End it and give back what it held here."""
        self.stop()
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            if stream is not None:
                stream.close()


class Children:
    """The client processes of one endpoint, started as they are needed and kept until the end.

    Args:
        target: Where they send.
    """

    def __init__(self, target: Target) -> None:
        self._target = json.dumps(asdict(target)).encode()  # headers go through a pipe, never onto a command line
        self._timeout_seconds = target.timeout_seconds
        self._processes: list[ClientProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.close()
        self._processes.clear()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes' pids."""
        return tuple(process.pid for process in self._processes)

    def start(self, count: int) -> None:
        """Have at least `count` processes.

        Raises:
            Transient: One ended at its start.
        """
        new = [ClientProcess() for _ in range(count - len(self._processes))]
        self._processes += new
        for process in new:
            process.say(Kind.TARGET, self._target)
        self._hear_ready(new)

    def send(self, shares: Sequence[Share]) -> RowReader:
        """Send a window, one share a process, all from the same moment on.

        Raises:
            Transient: A process ended, or did not come to an end; the window is lost, for a part of the requests
                would be a sample of its own.
        """
        processes = self._processes[: len(shares)]
        for process, share in zip(processes, shares, strict=True):
            process.say(Kind.SHARE, share.encode())
        self._hear_ready(processes)
        start = time.monotonic() + _LEAD_SECONDS
        for process in processes:
            process.say(Kind.START, json.dumps(start).encode())
        return self._collect(processes, shares, start)

    def _hear_ready(self, processes: Sequence[ClientProcess]) -> None:
        deadline = time.monotonic() + _PREPARE_SECONDS + self._timeout_seconds
        for process in processes:
            _wait_for([process], deadline)
            process.hear()

    def _collect(self, processes: Sequence[ClientProcess], shares: Sequence[Share], start: float) -> RowReader:
        rows = RowReader(sum(len(share.requests) for share in shares))
        pending = list(processes)
        deadline = start + shares[0].duration_seconds + self._timeout_seconds + _GRACE_SECONDS
        while pending:
            for process in _wait_for(pending, deadline):
                kind, data = process.hear()
                if kind is Kind.ROWS:
                    rows.add(data)
                    continue
                rest = json.loads(data)
                details = {Fault(int(fault)): detail for fault, detail in rest["details"].items()}
                rows.add_rest(np.array(rest["gap_counts"], np.int64), details, rest["processor_seconds"])
                pending.remove(process)
        return rows


def _wait_for(processes: Sequence[ClientProcess], deadline: float) -> list[ClientProcess]:
    """The processes with a message."""
    by_descriptor = {process.reads: process for process in processes}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    ready = poll.poll(1e3 * max(0.0, deadline - time.monotonic()))
    if not ready:
        raise Transient(
            "the client processes did not end in time",
            where=", ".join(f"client process {process.pid}" for process in processes),
            hint="is this machine out of memory or processor time?",
        )
    return [by_descriptor[descriptor] for descriptor, _ in ready]
