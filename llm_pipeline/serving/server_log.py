"""Reading a server's log for the lines that say why it did not start, or how its engine died."""

from __future__ import annotations

import re
from pathlib import Path

_NOISE = re.compile(r"CudaDriverHelper|NVML|DCGM|pinned memory|CUDA memory pool|cnmem|GPU metrics", re.IGNORECASE)
_RECORD = re.compile(r"^(?P<level>[IWE])\d{4} |^\S+Z (?P<iso>[IWE]) ")
_PYTHON_FAILURE = re.compile(r"[Ff]ailed to (initialize Python stub|load|create instance)")
_DEATHS = (
    re.compile(r"engine is dead: its process"),  # ours
    re.compile(r"Worker proc \S+ died unexpectedly"),  # vLLM's
    re.compile(r"engine failed|engine cannot be restarted|EngineDeadError"),
)
_TAIL_BYTES = 256 * 1024
_MOST_LINES, _MOST_CHARACTERS = 25, 300
_ERROR = re.compile(r"\b\w*(Error|Exception)\b: |\berror: ")
_SHOWN_LINES = 12


def failure_lines(log: Path) -> str:
    """The lines that explain a failed start: errors with what belongs to them, else the end of the log."""
    return telling_lines(_end_of(log))


def own_failure(log: Path) -> str:
    """The same of an engine's own server: the last errors, else the end of its log."""
    lines = _end_of(log).splitlines()
    return "\n".join(([line for line in lines if _ERROR.search(line)] or lines)[-_SHOWN_LINES:])


def engine_death(log: Path) -> str:
    """The line that says how the server's engine died last, one that names the process if any does.

    Empty where none says it, or without a log.
    """
    lines = _end_of(log).splitlines() if log.is_file() else []
    for told in _DEATHS:
        if found := [line.strip() for line in lines if told.search(line)]:
            return found[-1][:_MOST_CHARACTERS]
    return ""


def _end_of(log: Path) -> str:
    """The end of a log."""
    with log.open("rb") as stream:
        end = stream.seek(0, 2)
        stream.seek(max(0, end - _TAIL_BYTES))
        return stream.read().decode(errors="replace")


def telling_lines(text: str) -> str:
    """The lines of a log's text that explain a failed start; see `failure_lines`."""
    records = [record for record in _records(text) if not _NOISE.search(record)]
    failures = [record for record in records if _is_failure(record)]
    telling = next((record for record in failures if _PYTHON_FAILURE.search(record)), None)
    chosen = [telling] if telling else failures or records[-5:]
    lines = "\n".join(chosen).replace("\\n", "\n").splitlines()  # Triton escapes line ends inside its messages
    return "\n".join(lines[:_MOST_LINES])


def _records(text: str) -> list[str]:
    """Log records with their continuation lines."""
    records: list[str] = []
    for line in text.splitlines():
        if _RECORD.match(line) or not records:
            records.append(line)
        else:
            records[-1] += "\n" + line
    return records


def _is_failure(record: str) -> bool:
    match = _RECORD.match(record)
    return match is None or "E" in match.groups() or bool(_PYTHON_FAILURE.search(record))
