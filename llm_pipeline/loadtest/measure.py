"""The load client: sends traffic from its own processes and returns a record of every request.

    with LoadClient(endpoint) as client:
        measured = client.send(source.open_loop(rate_per_second=50, duration_seconds=60, seed=1))
        measured.records.answered.mean(), client_lag_seconds(measured.records)

Every latency counts from the scheduled time. The records hold the client's own delay; a window in which the client was
too late says nothing about the server, and the gate makes it void.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import IO, Any, Self

import numpy as np

from llm_pipeline.base.errors import ConfigError, ExitCode, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.plain_environment import plain_environment
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.outcome import ServerUse
from llm_pipeline.loadtest.records import Fault, Records
from llm_pipeline.loadtest.server_metrics import ServerSampler
from llm_pipeline.loadtest.traffic import Traffic

_REQUEST_SECONDS = 500e-6
_CHUNK_SECONDS = 30e-6
"""Processor time per request, and per chunk of its answer; measured on an EPYC core."""

_BUSY_SHARE = 0.4  # of a core: above it, a process sends late in bursts
_USERS_A_PROCESS = 128
_LAG_QUANTILE = 0.99
_log = get_logger(__name__)


@dataclass(frozen=True)
class MeasuredWindow:
    """What one window of traffic showed.

    Attributes:
        records: One row for each request that was sent.
        window_seconds: From the start of the window to its end, or to the last answer if that came later.
        server: What the server's metrics said meanwhile.
    """

    records: Records
    window_seconds: float
    server: ServerUse = field(default_factory=ServerUse)


class LoadClient:
    """Sends traffic to one endpoint; a context manager, whose processes live as long as it does.

    Args:
        endpoint: The server, or a router in front of several.
        processes: Client processes that share each window; None for as many as its rate needs, up to one per core.
        timeout_seconds: A request without a whole answer by then has failed.

    Attributes:
        processes: Those that run.
    """

    def __init__(self, endpoint: Endpoint, *, processes: int | None = None, timeout_seconds: float = 60.0) -> None:
        self._endpoint, self._count, self._timeout_seconds = endpoint, processes, timeout_seconds
        self._greeting = endpoint, endpoint.headers(), timeout_seconds  # headers never stand on a command line
        self.processes: list[ClientProcess] = []

    def __enter__(self) -> Self:
        try:
            self._start(self._count or 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.close()
        self.processes.clear()

    def send(self, traffic: Traffic) -> MeasuredWindow:
        """Send one window of traffic and wait until each of its requests has ended.

        Raises:
            Transient: Nobody answers at all, or a client process ended.
        """
        processes = self._count or processes_for(traffic)
        self._start(processes)
        with ServerSampler(self._endpoint) as sampler:
            records = self._send(traffic.dealt(processes))
        self._require_an_answer(records)
        last = float(np.max(records["arrives_at"] + records["total_seconds"], initial=0.0))
        _log.info(
            "window sent",
            requests=len(records),
            failed=int(np.count_nonzero(~records.judged.answered)),
            processes=processes,
            lag_p99_milliseconds=round(1e3 * client_lag_seconds(records), 3),
        )
        seconds = max(traffic.duration_seconds, last)
        return MeasuredWindow(records, seconds, sampler.use())

    def _start(self, count: int) -> None:
        """Have at least `count` processes."""
        known = len(self.processes)
        for _ in range(count - known):
            self.processes.append(ClientProcess())
        new = self.processes[known:]
        for process in new:
            process.say(self._greeting)
        self._hear_all(new, _PREPARE_SECONDS)

    def _send(self, dealt: Sequence[tuple[range, Traffic]]) -> Records:
        """Send a window, one part a process, all from the same moment on.

        If a process ends, the window is lost: a part of the requests would be a sample of its own.
        """
        processes = self.processes[: len(dealt)]
        for process, part in zip(processes, dealt, strict=True):
            process.say(part)
        self._hear_all(processes, _PREPARE_SECONDS)
        start = time.monotonic() + _LEAD_SECONDS
        for process in processes:
            process.say(start)
        heard = self._hear_all(processes, _LEAD_SECONDS + dealt[0][1].duration_seconds + _GRACE_SECONDS)
        details: dict[Fault, str] = {}
        for _, said in reversed(heard):
            details.update(said)
        return Records.of_rows(np.concatenate([rows for rows, _ in heard]), details)

    def _hear_all(self, processes: Sequence[ClientProcess], seconds: float) -> list[Any]:
        """A message of each process, within so many seconds and those that a request may take."""
        deadline = time.monotonic() + seconds + self._timeout_seconds
        pending: dict[Any, ClientProcess] = {process.connection: process for process in processes}
        heard: dict[int, Any] = {}
        while pending:
            ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
            if not ready:
                hint = "is this machine out of memory or processor time?"
                raise Transient("the client processes did not end in time", hint=hint)
            for connection in ready:
                process = pending.pop(connection)
                heard[process.pid] = process.hear()
        return [heard[process.pid] for process in processes]

    def _require_an_answer(self, records: Records) -> None:
        unanswered = np.isin(records["fault"], (Fault.CONNECTION, Fault.CUT)) & (records["output_tokens"] == 0)
        if len(records) and bool(np.all(unanswered)):
            reached = "was answered" if bool(np.any(records["status"])) else "reached a server"
            said = next(iter(records.details.values()), "no reason given")
            hint = "is the server running, and is this its port for OpenAI's API?"
            raise Transient(f"none of {len(records)} requests {reached}: {said}", where=self._endpoint.url, hint=hint)


def processes_for(traffic: Traffic) -> int:
    """Client processes that traffic needs to be sent on time; at most one per core."""
    if traffic.arrivals is None:
        wanted = traffic.concurrency / _USERS_A_PROCESS
    else:
        chunks = sum(request.maximum_tokens for request in traffic.requests)
        busy_seconds = len(traffic.requests) * _REQUEST_SECONDS + chunks * _CHUNK_SECONDS
        wanted = busy_seconds / traffic.duration_seconds / _BUSY_SHARE
    return max(1, min(math.ceil(wanted), len(os.sched_getaffinity(0))))


def client_lag_seconds(records: Records) -> float:
    """The p99 of how late the client sent; 0 without requests."""
    lags = np.sort(records["lag_seconds"])
    return float(lags[math.ceil(_LAG_QUANTILE * len(lags)) - 1]) if len(lags) else 0.0


def rate_share(records: Records) -> float:
    """Rate of the sends divided by the rate of the schedule; below 1 when the client fell behind."""
    if len(records) < 2:  # noqa: PLR2004 - a rate needs two
        return 1.0
    arrivals, lags = records["arrives_at"], records["lag_seconds"]
    offered = float(arrivals[-1] - arrivals[0])
    sent = float(np.max(arrivals + lags) - (arrivals[0] + lags[0]))
    return 1.0 if sent <= 0 else min(1.0, offered / sent)


_LEAD_SECONDS = 0.05  # from the word to all processes to the start of the window
_PREPARE_SECONDS = 60.0
_GRACE_SECONDS = 30.0
_STOP_SECONDS = 2.0
_SHOWN_BYTES = 2000


class ClientProcess:
    """One client process. Use `LoadClient`."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "llm_pipeline.loadtest.client"],
                stdin=theirs.fileno(),
                stdout=self._said,
                stderr=self._said,
                env=plain_environment(),  # header values go through the socket
            )

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._child.pid

    def say(self, message: object) -> None:
        """Send it a message.

        Raises:
            ConfigError: It cannot run in this interpreter.
            Transient: It has ended.
        """
        try:
            self.connection.send(message)
        except ConnectionError as error:
            raise self._failure() from error

    def hear(self) -> Any:
        """Its next message; raises as `say`."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._failure() from error

    def _failure(self) -> PipelineError:
        """Why it ended, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_STOP_SECONDS)  # its own exit code, if any, says what went wrong
        self._kill()
        self._said.seek(0)
        said = self._said.read()[-_SHOWN_BYTES:].decode(errors="replace").strip()
        if self._child.returncode == ExitCode.BAD_INPUT:
            return ConfigError("the load test's client cannot run here", where="client process", hint=said)
        return Transient(
            f"a client process ended (exit code {self._child.returncode}), and its requests with it",
            where=f"client process {self.pid}",
            hint=said or "killed, or out of memory? run the load test again",
        )

    def close(self) -> None:
        """Kill it, which holds nothing that must be saved, and give back what it held here."""
        self._kill()
        self.connection.close()
        self._said.close()

    def _kill(self) -> None:
        self._child.kill()
        self._child.wait(_STOP_SECONDS)
