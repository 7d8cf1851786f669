"""One packed row a request, in blocks: how a client process keeps its records and hands them back."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.records import COLUMNS, GAP_EDGES, Fault, Records, column_type, gap_bin

ROW = np.dtype([(name, np.dtype(column_type(name)).newbyteorder("<")) for name in COLUMNS])
"""A packed row: the columns of `Records` in their order."""

_FORMATS = {"i8": "q", "f8": "d", "i4": "i", "i2": "h", "u1": "B", "b1": "?"}
_PACKED = struct.Struct("<" + "".join(_FORMATS[np.dtype(column_type(name)).str[1:]] for name in COLUMNS))
_BLOCK_ROWS = 4096


class RowWriter:
    """The records of one client process, as they come.

    Attributes:
        count: Rows so far.
        gap_counts: Histogram of silences, by `records.GAP_EDGES`.
        details: What the first failure of each kind said.
    """

    def __init__(self) -> None:
        self.count = 0
        self.gap_counts = [0] * (len(GAP_EDGES) - 1)
        self.details: dict[Fault, str] = {}
        self._blocks = [bytearray(_BLOCK_ROWS * _PACKED.size)]

    def add(self, answer: Answer) -> None:
        """Add an answer that has ended."""
        place = self.count % _BLOCK_ROWS
        if self.count and not place:
            self._blocks.append(bytearray(_BLOCK_ROWS * _PACKED.size))
        self.count += 1
        scheduled = answer.scheduled_at
        _PACKED.pack_into(
            self._blocks[-1],
            place * _PACKED.size,
            answer.number,
            answer.arrives_at,
            answer.sent_at - scheduled,
            answer.first_text_at - scheduled,
            answer.last_text_at - scheduled,
            answer.ended_at - scheduled,
            max(answer.gaps, default=0.0),
            answer.input_tokens,
            answer.output_tokens,
            answer.request.maximum_tokens,
            answer.status,
            answer.fault,
        )
        for gap in answer.gaps:
            self.gap_counts[gap_bin(gap)] += 1
        if answer.detail and answer.fault not in self.details:
            self.details[answer.fault] = answer.detail

    def blocks(self) -> list[memoryview]:
        """The rows, packed, a few thousand at a time."""
        rest = self.count - _BLOCK_ROWS * (len(self._blocks) - 1)
        views = [memoryview(block) for block in self._blocks]
        views[-1] = views[-1][: rest * _PACKED.size]
        return views


class RowReader:
    """The rows of all client processes of a window, put in their places as they arrive.

    Attributes:
        processor_seconds: What sending and reading took, all processes together.
    """

    def __init__(self, requests: int) -> None:
        self.processor_seconds = 0.0
        self._columns = {name: np.zeros(requests, column_type(name)) for name in COLUMNS}
        self._present = np.zeros(requests, np.bool_)
        self._gap_counts = np.zeros(len(GAP_EDGES) - 1, np.int64)
        self._details: dict[Fault, str] = {}

    def add(self, block: bytes) -> None:
        """Take a block of rows."""
        rows = np.frombuffer(block, ROW)
        places = rows["number"]
        for name, column in self._columns.items():
            column[places] = rows[name]
        self._present[places] = True

    def add_rest(self, gap_counts: NDArray[np.int64], details: dict[Fault, str], processor_seconds: float) -> None:
        """Take what a process says beside its rows."""
        self.processor_seconds += processor_seconds
        self._gap_counts += gap_counts
        self._details = {**details, **self._details}

    @property
    def missing(self) -> int:
        """Requests that have no row."""
        return int(np.count_nonzero(~self._present))

    def records(self) -> Records:
        """The records, in order of their arrival."""
        columns = self._columns
        if self.missing:
            columns = {name: column[self._present] for name, column in columns.items()}
        if np.any(np.diff(columns["arrives_at"]) < 0):  # users of several processes took turns
            order = np.lexsort((columns["number"], columns["arrives_at"]))
            columns = {name: column[order] for name, column in columns.items()}
        return Records(columns, self._gap_counts, self._details)
