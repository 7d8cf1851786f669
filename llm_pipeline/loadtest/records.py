"""The records of a window: one row per request, in columns, timed from the scheduled arrival.

A million requests are about 100 MB here. In a closed loop a request's scheduled arrival is the moment of its send.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.errors import IntegrityError, unless_io


class Fault(IntEnum):
    """How a request ended; the numbers are stored.

    Attributes:
        NONE: A whole, plausible answer.
        CONNECTION: Nobody answered, or the connection broke before the answer began.
        TIMEOUT: No whole answer in time.
        SHED: Refused for lack of room (HTTP 429 or 503, or Triton's UNAVAILABLE).
        REFUSED: Refused for what was asked, or failed with another HTTP status.
        ERROR_IN_ANSWER: An error inside an answer of HTTP 200.
        CUT: The stream ended without its last chunk.
        SHORT: A whole answer of fewer tokens than asked for, which could not end by itself.
        LONG: More tokens than asked for.
        EMPTY: Tokens without any text.
        MALFORMED: Not an answer of the model.
        CANCELLED: The server ended it as cancelled, and nobody had left.
        LEFT: The user left half-way, as planned; neither good nor bad.
    """

    NONE = 0, "answered"
    CONNECTION = 1, "no connection"
    TIMEOUT = 2, "timed out"
    SHED = 3, "shed"
    REFUSED = 4, "refused"
    ERROR_IN_ANSWER = 5, "error under HTTP 200"
    CUT = 6, "stream cut"
    SHORT = 7, "fewer tokens than asked"
    LONG = 8, "more tokens than asked"
    EMPTY = 9, "no text"
    MALFORMED = 10, "not an answer"
    CANCELLED = 11, "cancelled by the server"
    LEFT = 12, "left by the user"

    words: str
    """What it is, for a table."""

    def __new__(cls, number: int, words: str = "") -> Self:
        """The fault of a number."""
        fault = int.__new__(cls, number)
        fault._value_, fault.words = number, words
        return fault


COLUMNS: Mapping[str, type[np.generic]] = {
    "number": np.int64,  # its place in the traffic
    "arrives_at": np.float64,  # scheduled arrival, from the start of the window
    "lag_seconds": np.float64,  # how late we sent it
    "first_token_seconds": np.float64,  # from the scheduled arrival to the first text; NaN without one
    "last_token_seconds": np.float64,  # to the last text; NaN without one
    "total_seconds": np.float64,  # to the last byte
    "longest_gap_seconds": np.float64,  # longest silence between two chunks
    "input_tokens": np.int32,  # as counted by the server; 0 when it does not say
    "output_tokens": np.int32,  # as counted by the server
    "asked_tokens": np.int32,  # `max_tokens`
    "status": np.int16,  # of HTTP; 0 when there was no answer
    "fault": np.uint8,  # what became of it
}
"""What is kept of a request.

All latencies count from the scheduled arrival, not from the send: a request that had to wait because the server (or we)
stalled has waited for its user too. Timing from the send hides that ("coordinated omission", G. Tene).
"""


@dataclass(frozen=True)
class Records:
    """The requests of one window, in order of their scheduled arrival; each column is an array of one value a request.

    Attributes:
        details: What the first failed requests said, by fault.
    """

    columns: dict[str, NDArray[Any]]
    details: dict[Fault, str] = field(default_factory=dict)

    @classmethod
    def of_rows(cls, rows: NDArray[np.float64], details: dict[Fault, str] | None = None) -> Records:
        """Records of requests in any order, one number a column; shape [requests, columns]."""
        places = {name: place for place, name in enumerate(COLUMNS)}
        ordered = rows[np.lexsort((rows[:, places["number"]], rows[:, places["arrives_at"]]))]
        return cls({name: ordered[:, place].astype(COLUMNS[name]) for name, place in places.items()}, details or {})

    def __len__(self) -> int:
        return len(self.columns["number"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def where(self, mask: NDArray[np.bool_]) -> Records:
        """The requests of a mask."""
        return Records({name: column[mask] for name, column in self.columns.items()}, self.details)

    def between(self, start: float, end: float) -> Records:
        """The requests that arrived from one moment to another, as a window of their own."""
        part = self.where((self["arrives_at"] >= start) & (self["arrives_at"] < end))
        part.columns["arrives_at"] = part["arrives_at"] - start
        return part

    @property
    def judged(self) -> Records:
        """Without the requests whose user left as planned."""
        return self.where(self["fault"] != Fault.LEFT) if bool(np.any(self["fault"] == Fault.LEFT)) else self

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which requests have a whole, plausible answer."""
        return np.asarray(self["fault"] == Fault.NONE)

    @property
    def time_per_output_token_seconds(self) -> NDArray[np.float64]:
        """From the first to the last token by the tokens after the first; NaN for fewer than two.

        As in MLPerf Inference: (last - first) / (n - 1).
        """
        span = self["last_token_seconds"] - self["first_token_seconds"]
        several = self["output_tokens"] > 1
        return np.where(several, span / np.maximum(1, self["output_tokens"] - 1), np.nan)


def write_records(path: Path, records: Records) -> None:
    """Write records as gzipped CSV, the same bytes for the same records."""
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="", compresslevel=4) as packed:
        table = np.round(np.column_stack([records[name] for name in COLUMNS]), 7)
        np.savetxt(packed, table, fmt="%.12g", delimiter=",", header=",".join(COLUMNS), comments="")


def read_records(path: Path) -> Records:
    """Read the records of one window.

    Raises:
        IntegrityError: The file is missing or not one of ours.
    """
    try:
        with gzip.open(path, "rt", encoding="ascii") as stream:
            head = stream.readline().strip()
            if head != ",".join(COLUMNS):
                raise IntegrityError(f"not the records of a load test: its columns are {head}", where=str(path))
            return Records.of_rows(np.loadtxt(stream, delimiter=",", ndmin=2))
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise unless_io(error, IntegrityError(f"no readable load test: {error}", where=str(path))) from error
