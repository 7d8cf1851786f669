"""Processes that outlive whoever started them, found again and stopped by a record on disk.

A detached process runs in a session of its own. Its record (pid and start time, so that a reused pid is never
mistaken for it) is a small JSON file; `stop` ends the whole process group. Linux only: it reads `/proc`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from llm_pipeline.errors import ConfigError


class DetachedProcess(BaseModel):
    """A process as recorded on disk.

    Attributes:
        name: What it is, for people.
        pid: Its pid, which is also its process group and session.
        start_ticks: Its start time in clock ticks since boot.
        boot_id: The boot in which `start_ticks` counts.
        command: Its argument list; never holds a secret.
        log: File that its stdout and stderr go to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    command: tuple[str, ...]
    log: Path

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return _boot_id() == self.boot_id and process_start_ticks(self.pid) == self.start_ticks

    @property
    def group_alive(self) -> bool:
        """Whether the process or any child in its group still runs."""
        return self.alive or (_boot_id() == self.boot_id and bool(_group_members(self.pid, self.start_ticks)))


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
        boot_id=_boot_id(),
        command=tuple(command),
        log=log,
    )
    temporary = record.with_name(f".{record.name}.{os.getpid()}")
    temporary.write_text(process.model_dump_json(indent=1))
    temporary.replace(record)
    return process


def load(record: Path) -> DetachedProcess | None:
    """The process of a record; None when there is no record."""
    try:
        return DetachedProcess.model_validate_json(record.read_text())
    except FileNotFoundError:
        return None


def stop(process: DetachedProcess, *, grace_seconds: float = 10.0) -> None:
    """End the process and its group: SIGTERM, then SIGKILL after the grace time. A dead one is fine."""
    if not process.group_alive:
        _reap(process.pid)
        return
    _signal_group(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while process.group_alive and time.monotonic() < deadline:
        _reap(process.pid)
        time.sleep(0.05)
    if process.group_alive:
        _signal_group(process.pid, signal.SIGKILL)
    while process.group_alive:
        _reap(process.pid)
        time.sleep(0.05)
    _reap(process.pid)


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    """Collect the process if it is our child, so that it does not stay a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


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


def process_is_stopped(pid: int, start_ticks: int) -> bool:
    """Whether the process that started then is stopped by a signal."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] == "T" and int(fields[19]) == start_ticks


def _group_members(group: int, started: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        fields = _stat_fields(int(entry.name))
        if fields and fields[0] != "Z" and int(fields[2]) == group and int(fields[19]) >= started:
            members.append(int(entry.name))
    return members


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
