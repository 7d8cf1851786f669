"""Why a request failed, by kind: what the gate counts, the table shows and the verdict names."""

from __future__ import annotations

from enum import IntEnum


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

    NONE = 0
    CONNECTION = 1
    TIMEOUT = 2
    SHED = 3
    REFUSED = 4
    ERROR_IN_ANSWER = 5
    CUT = 6
    SHORT = 7
    LONG = 8
    EMPTY = 9
    MALFORMED = 10
    CANCELLED = 11
    LEFT = 12

    @property
    def words(self) -> str:
        """What it is, for a table."""
        return _WORDS[self]


_WORDS = {
    Fault.NONE: "answered",
    Fault.CONNECTION: "no connection",
    Fault.TIMEOUT: "timed out",
    Fault.SHED: "shed",
    Fault.REFUSED: "refused",
    Fault.ERROR_IN_ANSWER: "error under HTTP 200",
    Fault.CUT: "stream cut",
    Fault.SHORT: "fewer tokens than asked",
    Fault.LONG: "more tokens than asked",
    Fault.EMPTY: "no text",
    Fault.MALFORMED: "not an answer",
    Fault.CANCELLED: "cancelled by the server",
    Fault.LEFT: "left by the user",
}
