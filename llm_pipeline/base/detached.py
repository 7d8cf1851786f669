"""Processes that outlive whoever started them, found again and stopped by a record on disk.

A detached process runs in a session of its own. Its record (pid and start time, so that a reused pid is never
mistaken for it) is a small JSON file; `stop` ends the whole session. Linux only: it reads `/proc`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen

log = get_logger(__name__)

_UNRECORDED_GRACE_SECONDS = 1.0
"""It has just been started: there is nothing yet that it could finish."""

_reported: set[Path] = set()
"""Damaged records that were logged, so that each is logged once."""


class DetachedProcess(Frozen):
    """A process as recorded on disk.

    Attributes:
        name: What it is, for people.
        pid: Its pid, which is also its process group and session.
        start_ticks: Its start time in clock ticks since boot.
        boot_id: The boot in which `start_ticks` counts.
        command: Its argument list; never holds a secret.
        log: File that its stdout and stderr go to.
    """

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    command: tuple[str, ...]
    log: Path

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return boot_id() == self.boot_id and process_start_ticks(self.pid) == self.start_ticks

    @property
    def session_alive(self) -> bool:
        """Whether the process or any other of its session still runs, whatever its process group."""
        return self.alive or (boot_id() == self.boot_id and bool(_session_members(self.pid, self.start_ticks)))


def start(
    name: str,
    command: Sequence[str],
    record: Path,
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> DetachedProcess:
    """Start `command` in its own session and write its record.

    Args:
        name: What it is, for people.
        command: Argument list; it shows in the process list, so it must hold no secret.
        record: File to write the record to; its directory is made.
        log: File that stdout and stderr are appended to.
        environment: The whole environment of the process; None inherits ours.
        directory: Working directory; None inherits ours.

    Raises:
        ConfigError: The program does not exist or cannot be started.
        OSError: Log or record cannot be written; then nothing runs.
    """
    record.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=directory,
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            raise ConfigError(f"cannot start {name}: {error}", where=command[0]) from error
    process = DetachedProcess(
        name=name,
        pid=child.pid,
        start_ticks=process_start_ticks(child.pid) or 0,
        boot_id=boot_id(),
        command=tuple(command),
        log=log,
    )
    try:
        replace_durably(record, process.model_dump_json(indent=1).encode())
    except BaseException:  # such as a full disk: it would run on, and hold its ports, with nobody who knows it
        stop(process, grace_seconds=_UNRECORDED_GRACE_SECONDS)
        raise
    return process


def load(record: Path) -> DetachedProcess | None:
    """The process of a record; None when there is no record, or one that says nothing: empty, or torn.

    Raises:
        Transient: The record cannot be read.
    """
    try:
        data = record.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = "make it readable for the user that runs this, then try again"
        raise Transient(f"cannot read {record}: {error.strerror}", where=str(record), hint=hint) from error
    process = parsed(data)
    if process is None and record not in _reported:
        _reported.add(record)
        log.warning("the record of a process is damaged: no process is known by it", record=str(record))
    return process


def parsed(data: bytes) -> DetachedProcess | None:
    """The process that a record's bytes describe; None when they describe none."""
    try:
        return DetachedProcess.model_validate_json(data)
    except ValidationError:
        return None


def stop(process: DetachedProcess, *, grace_seconds: float = 10.0) -> None:
    """End the process and its session: SIGTERM to its group, then SIGKILL to what is left after the grace time.

    A child in a group of its own, such as an engine that is just being started again, hears no SIGTERM. It is killed as
    soon as the group has ended, because nobody is left to end it. A dead process is fine.

    Raises:
        ConfigError: It is another user's.
    """
    if process.session_alive:
        _signal_group(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while process.session_alive:
        _reap(process.pid)
        groups = _session_members(process.pid, process.start_ticks)
        if process.pid not in groups.values() or time.monotonic() > deadline:
            for pid in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    _reap(process.pid)


def require_ours(process: DetachedProcess) -> None:
    """Refuse a process that we may not stop, before anything else is stopped.

    Raises:
        ConfigError: It is another user's.
    """
    if process.alive:
        _signal_group(process.pid, 0)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        try:
            owner = Path(f"/proc/{pid}").owner()
        except (FileNotFoundError, KeyError):  # it is gone, or its user has no name here
            owner = "that started it"
        raise ConfigError(f"process {pid} belongs to the user {owner}", hint=f"run this as {owner}") from error


def _reap(pid: int) -> None:
    """Collect the process if it is our child, so that it does not stay a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()  # the name in parentheses may hold spaces


def process_start_ticks(pid: int) -> int | None:
    """Start time of a running process in clock ticks since boot; None if there is none (or only a zombie)."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


def _session_members(session: int, started: int) -> dict[int, int]:
    """The processes of a session that run, each with its process group."""
    members = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        fields = _stat_fields(pid)
        if fields and fields[0] != "Z" and int(fields[3]) == session and int(fields[19]) >= started:
            members[pid] = int(fields[2])
    return members


def visible_processes() -> str:
    """Where the pids that we see mean something: this boot of the host, and our namespace of processes.

    Two containers may share a host's name and see different processes; a host that was restarted has reused its pids.
    """
    return f"{boot_id()} {Path('/proc/self/ns/pid').readlink()}"


def boot_id() -> str:
    """Tells one boot of one host from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
