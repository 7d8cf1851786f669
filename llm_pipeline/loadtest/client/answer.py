"""One request in flight and its answer so far: every byte that arrives is read and timed here.

The first token is the first chunk with text in it, not the first chunk. Tokens are those the server counts, chunk by
chunk. A failure is data: a stream may break off, or say under HTTP 200 that it failed. So every answer is checked, by
the rules of `serving/completions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from math import isnan, nan

from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.traffic import LoadRequest
from llm_pipeline.serving.completions import (
    KEPT_CHARACTERS,
    CompletionReader,
    ErrorInAnswer,
    Flaw,
    NotAnAnswer,
    flaw_of,
    refusal_text,
)

_KEPT_BYTES = 1 << 16  # of the body of a refusal
_FIELDS = (b":", b"event:", b"id:", b"retry:")  # of a stream of events, beside "data:"
_LONGEST_PIECE_BYTES = 1 << 22  # of one chunk, or of a whole answer: far above any generation
_SHED_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_FAULTS: Mapping[Flaw, Fault] = {
    "cut": Fault.CUT,
    "cancelled": Fault.CANCELLED,
    "ended": Fault.ERROR_IN_ANSWER,
    "long": Fault.LONG,
    "short": Fault.SHORT,
    "empty": Fault.EMPTY,
}


class Answer:
    """One request and its answer so far; all moments are CLOCK_MONOTONIC seconds.

    Attributes:
        request: What is asked.
        status: HTTP status; 0 before the answer begins.
        fault: What became of it, once it has ended.
        detail: What the failure said, cut to what `serving.completions` keeps.
        first_text_at: First chunk with text; NaN without one.
        last_text_at: Last chunk with text; NaN without one.
        longest_gap: Longest silence between two chunks, in seconds.
    """

    def __init__(self, request: LoadRequest, model: str | None = None) -> None:
        self.request = request
        self.status, self.input_tokens, self.output_tokens = 0, 0, 0
        self.fault, self.detail = Fault.NONE, ""
        self.first_text_at, self.last_text_at, self.longest_gap = nan, nan, 0.0
        self._previous_at, self._reader = 0.0, CompletionReader(model, stream=True)
        self._pending = self._stray = b""
        self._finish_reason = self._error = self._malformed = ""

    def take(self, body: bytes, now: float) -> None:
        """Take the next bytes of the body, at any boundary; once there is a fault, no more are wanted."""
        if self._pending:
            body = self._pending + body
        if self.status != HTTPStatus.OK:
            self._pending = body[:_KEPT_BYTES]
            return
        *lines, self._pending = body.split(b"\n")
        for line in lines:
            self._take_line(line, now)
        ended = self._finish_reason or self._error or self._malformed
        if len(self._pending) > _LONGEST_PIECE_BYTES:
            self.end(Fault.MALFORMED, f"more than {_LONGEST_PIECE_BYTES} bytes without an end")
        elif 0 < self.request.cancel_after_tokens <= self.output_tokens and not ended:
            self.end(Fault.LEFT, "")  # as planned; an answer that is already whole or wrong is read to its end

    def _take_line(self, line: bytes, now: float) -> None:
        """A line of a stream: a chunk, or other text, which may say why there is no answer."""
        if line.startswith(b"data:"):
            self._take_chunk(line[5:], now)
        elif line.strip() and not line.startswith(_FIELDS) and len(self._stray) < KEPT_CHARACTERS:
            self._stray += line.strip() + b" "

    def end(self, fault: Fault, detail: str) -> None:
        """Nothing more will come."""
        self.fault, self.detail, self._pending = fault, detail[:KEPT_CHARACTERS], b""

    def break_off(self, now: float, detail: str) -> None:
        """The connection was lost; what came in whole lines may be all of the answer."""
        if not self.status:
            self.end(Fault.CONNECTION, detail)
            return
        if self.status == HTTPStatus.OK:
            self._pending = b""
        self.complete(now)

    def complete(self, now: float) -> None:
        """The body has ended: judge it, unless it has a fault already."""
        if self.fault:
            return
        if self.status != HTTPStatus.OK:
            fault = Fault.SHED if self.status in _SHED_STATUSES else Fault.REFUSED
            self.end(fault, f"HTTP {self.status}: {refusal_text(self._pending)}")
            return
        self._take_line(self._pending, now)
        if self._stray and not self._finish_reason and not self._previous_at:
            self._take_chunk(self._stray.strip(), now)  # no stream at all: an error in JSON, or a page of a proxy
        self.end(*self._judge())

    def _take_chunk(self, raw: bytes, now: float) -> None:
        try:
            piece = self._reader.read(raw)
        except ErrorInAnswer as error:
            self._error = self._error or str(error)
            return
        except NotAnAnswer as fault:
            self._malformed = self._malformed or str(fault)
            return
        if piece is None:
            return
        text, tokens, reason, input_tokens = piece
        self.output_tokens += tokens
        self.input_tokens = max(self.input_tokens, input_tokens)
        if text:
            self.last_text_at = now
            if isnan(self.first_text_at):
                self.first_text_at = now
        if text or tokens or reason != self._finish_reason:  # an empty chunk ends no silence
            self._finish_reason = reason
            if self._previous_at:
                self.longest_gap = max(self.longest_gap, now - self._previous_at)
            self._previous_at = now

    def _judge(self) -> tuple[Fault, str]:
        if self._error:
            return Fault.ERROR_IN_ANSWER, self._error
        if self._malformed:
            return Fault.MALFORMED, self._malformed
        if lacking := self._reader.lacks():
            return Fault.CUT, lacking
        flaw = flaw_of(
            self.output_tokens,
            self._finish_reason,
            most=self.request.maximum_tokens,
            ignore_eos=True,
            has_text=not isnan(self.last_text_at),
        )
        if flaw is None:
            return Fault.NONE, ""
        fault, detail = _FAULTS[flaw[0]], flaw[1]
        if fault is Fault.CUT and self._stray:
            detail = f"{detail}; the server said: {self._stray.decode(errors='replace').strip()}"
        return fault, detail
