"""Where a server's processor time goes: by process, with its busiest thread and how long threads waited to run."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Thread(NamedTuple):
    """One thread: ids of its process and its own, as text, and the name of its process."""

    process: str
    thread: str
    name: str


class Seconds(NamedTuple):
    """Of a thread: on a processor, and ready to run while others had it."""

    ran: float
    waited: float


def processor_time(root: int) -> dict[Thread, Seconds]:
    """What each thread of a process and of its descendants has had so far."""
    seen: dict[Thread, Seconds] = {}
    for process in _descendants(str(root)):
        try:
            name = Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()
            for task in Path(f"/proc/{process}/task").iterdir():
                seen[Thread(process, task.name, name)] = _seconds(task)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return seen


def describe_use(before: Mapping[Thread, Seconds], after: Mapping[Thread, Seconds], wall_seconds: float) -> str:
    """Processors that each process kept busy on average, largest first."""
    processes = defaultdict[tuple[str, str], list[Seconds]](list)
    for thread, now in after.items():
        then = before.get(thread, Seconds(0.0, 0.0))
        processes[thread.name, thread.process].append(Seconds(now.ran - then.ran, now.waited - then.waited))
    rows = []
    for (name, process), threads in processes.items():
        ran, waited = (sum(values) / wall_seconds for values in zip(*threads, strict=True))
        busiest = max(one.ran for one in threads) / wall_seconds
        rows.append((ran, f"{name}[{process}] {ran:.2f} (busiest thread {busiest:.2f}, waited {waited:.3f})"))
    return ", ".join(text for ran, text in sorted(rows, reverse=True) if ran >= 0.005)


def _descendants(root: str) -> Iterator[str]:
    yield root
    for children in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            listed = children.read_text(encoding="utf-8").split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in listed:
            yield from _descendants(child)


def _seconds(task: Path) -> Seconds:
    """From the kernel's ticks, and where it keeps schedule statistics from those."""
    fields = (task / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ran, waited = sum(map(int, fields[11:13])) / _TICKS, 0.0
    if (statistics := task / "schedstat").exists():
        nanoseconds = statistics.read_text(encoding="utf-8").split()
        ran, waited = int(nanoseconds[0]) / 1e9, int(nanoseconds[1]) / 1e9
    return Seconds(ran, waited)
