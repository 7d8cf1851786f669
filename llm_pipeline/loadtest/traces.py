"""Recorded traffic in the two formats that are public: when requests came, how long they were, what they share.

Mooncake: one JSON object a line with `timestamp` (milliseconds), `input_length`, `output_length` and `hash_ids`, one
for each block of 512 input tokens, the last and partial one included; equal leading ids are equal leading blocks. Its
times are recorded in steps of about 3 seconds. Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.

BurstGPT: CSV with the columns `Timestamp` (seconds), `Model`, `Request tokens`, `Response tokens`, `Total tokens` and
`Log Type`; requests that failed have 0 response tokens and are left out. Source: github.com/HPMLL/BurstGPT, README.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from llm_pipeline.base.errors import ConfigError, unless_io
from llm_pipeline.config.workload import Trace
from llm_pipeline.loadtest.draws import Floats, Integers

BLOCK_TOKENS = 512
_LONGEST_TOKENS = 1_000_000_000
Line = TypeVar("Line")
_TIME, _INPUT, _OUTPUT = "Timestamp", "Request tokens", "Response tokens"


@dataclass(frozen=True)
class RecordedTraffic:
    """The requests of a trace from its first second on, in order.

    Attributes:
        times: Seconds from the first of them; shape [requests].
        prompt_tokens: Length of each prompt.
        output_tokens: Length of each answer.
        blocks: Ids of each prompt's blocks of 512 tokens; empty when the trace does not name them.
    """

    times: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    blocks: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.times)

    def replay(self, count: int, duration_seconds: float) -> Floats:
        """The first `count` arrivals, stretched or pressed to fill a window: its mean rate is the wanted one.

        A trace that has fewer starts over, after a gap of its mean length.
        """
        lap = self.times[-1] * len(self) / (len(self) - 1)
        number = np.arange(count + len(self))
        times = self.times[number % len(self)] + lap * (number // len(self))
        end = times[np.searchsorted(times, times[count - 1], side="right")]
        return np.asarray(times[:count] / end * duration_seconds)


@dataclass(frozen=True)
class _Row:
    seconds: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_trace(path: Path, trace: Trace) -> RecordedTraffic:
    """Read a trace.

    Raises:
        ConfigError: The file cannot be read, a line is not of the format or earlier than the one before, or fewer than
            two requests come at different times from `first_second` on.
    """
    read = _mooncake if trace.format == "mooncake" else _burstgpt
    try:
        rows = [row for row in _in_order(path, read(path)) if row.seconds >= trace.first_second]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unless_io(error, ConfigError(f"cannot be read: {error}", where=str(path))) from error
    if len(rows) < 2 or rows[0].seconds == rows[-1].seconds:  # noqa: PLR2004 - two make a distance
        raise ConfigError(
            f"no two requests at different times from second {trace.first_second:g} on",
            where=str(path),
            hint="begin earlier, or give a longer trace",
        )
    return RecordedTraffic(
        times=np.array([row.seconds for row in rows]) - rows[0].seconds,
        prompt_tokens=np.array([row.prompt_tokens for row in rows], dtype=np.int64),
        output_tokens=np.array([row.output_tokens for row in rows], dtype=np.int64),
        blocks=tuple(row.blocks for row in rows) if any(row.blocks for row in rows) else (),
    )


def _in_order(path: Path, rows: Iterator[tuple[int, _Row]]) -> Iterator[_Row]:
    before = 0.0
    for number, row in rows:
        if row.seconds < before:
            raise ConfigError(
                "the request is earlier than the one before", where=f"{path}:{number}", hint="sort the trace by time"
            )
        before = row.seconds
        yield row


def _mooncake(path: Path) -> Iterator[tuple[int, _Row]]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _checked(_mooncake_row, line, f"{path}:{number}")


def _mooncake_row(line: str) -> _Row:
    fields = json.loads(line)
    row = _Row(
        float(fields["timestamp"]) / 1000.0,
        int(fields["input_length"]),
        int(fields["output_length"]),
        tuple(map(int, fields.get("hash_ids", ()))),
    )
    if row.blocks and not row.prompt_tokens // BLOCK_TOKENS <= len(row.blocks) <= -(-row.prompt_tokens // BLOCK_TOKENS):
        raise ValueError(f"{len(row.blocks)} hash_ids are not those of {row.prompt_tokens} tokens in blocks of 512")
    return row


def _burstgpt(path: Path) -> Iterator[tuple[int, _Row]]:
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if missing := {_TIME, _INPUT, _OUTPUT} - set(reader.fieldnames or ()):
            raise ConfigError(
                f"no column {', '.join(sorted(missing))}",
                where=f"{path}:1",
                hint=f"a BurstGPT trace begins with {_TIME},Model,{_INPUT},{_OUTPUT},Total tokens,Log Type",
            )
        for fields in reader:
            row = _checked(_burstgpt_row, fields, f"{path}:{reader.line_num}")
            if row.output_tokens:
                yield reader.line_num, row


def _burstgpt_row(fields: dict[str, str]) -> _Row:
    failed = int(fields[_OUTPUT]) == 0
    return _Row(float(fields[_TIME]), max(int(fields[_INPUT]), int(failed)), int(fields[_OUTPUT]))


def _checked(read: Callable[[Line], _Row], line: Line, where: str) -> _Row:
    try:
        row = read(line)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ConfigError(f"not a request of the trace's format: {what}", where=where) from error
    lengths = 1 <= row.prompt_tokens <= _LONGEST_TOKENS and 0 <= row.output_tokens <= _LONGEST_TOKENS
    if not 0.0 <= row.seconds < np.inf or not lengths:
        raise ConfigError("a time or a length of the request is not a positive number, or far too large", where=where)
    return row
