"""One request in flight and its answer so far: every byte that arrives is read and timed here.

The first token is the first chunk with text in it, not the first chunk. Tokens are those the server counts, chunk by
chunk. A failure is data: a stream may break off, or say under HTTP 200 that it failed. So every answer is checked, by
the rules of `serving/completions`, which read it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from math import isnan, nan

from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.traffic import LoadRequest
from llm_pipeline.serving.completions import KEPT_CHARACTERS, CompletionReader, Flaw, Piece, refusal_text

_KEPT_BYTES = 1 << 16  # of the body of a refusal
_SHED_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_FAULTS: Mapping[Flaw, Fault] = {
    "error": Fault.ERROR_IN_ANSWER,
    "malformed": Fault.MALFORMED,
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
        reader: Has its tokens.
        status: HTTP status; 0 before the answer begins.
        fault: What became of it, once it has ended.
        detail: What the failure said, cut to what `serving.completions` keeps.
        first_text_at: First chunk with text; NaN without one.
        last_text_at: Last chunk with text; NaN without one.
        longest_gap: Longest silence between two chunks, in seconds.
    """

    def __init__(self, request: LoadRequest, model: str | None = None) -> None:
        self.request, self.reader = request, CompletionReader(model, stream=True)
        self.status, self.fault, self.detail = 0, Fault.NONE, ""
        self.first_text_at, self.last_text_at, self.longest_gap = nan, nan, 0.0
        self._previous_at, self._finish_reason, self._refusal = 0.0, "", b""

    def take(self, body: bytes, now: float) -> None:
        """Take the next bytes of the body, at any boundary; once there is a fault, no more are wanted."""
        if self.status != HTTPStatus.OK:
            self._refusal = (self._refusal + body)[:_KEPT_BYTES]
            return
        self._note(self.reader.take(body), now)
        if self.reader.wrong:
            self.complete(now)
        elif 0 < self.request.cancel_after_tokens <= self.reader.tokens and not self._finish_reason:
            self.end(Fault.LEFT, "")  # as planned; an answer that is already whole is read to its end

    def _note(self, pieces: Sequence[Piece], now: float) -> None:
        for text, tokens, reason in pieces:
            if text:
                self.last_text_at = now
                if isnan(self.first_text_at):
                    self.first_text_at = now
            if text or tokens or reason != self._finish_reason:  # an empty chunk ends no silence
                self._finish_reason = reason
                if self._previous_at:
                    self.longest_gap = max(self.longest_gap, now - self._previous_at)
                self._previous_at = now

    def end(self, fault: Fault, detail: str) -> None:
        """Nothing more will come."""
        self.fault, self.detail = fault, detail[:KEPT_CHARACTERS]

    def break_off(self, now: float, detail: str) -> None:
        """The connection was lost; what came in whole lines may be all of the answer."""
        if self.status:
            self.complete(now, lost=True)
        else:
            self.end(Fault.CONNECTION, detail)

    def complete(self, now: float, *, lost: bool = False) -> None:
        """The body has ended: judge it, unless it has a fault already."""
        if self.fault:
            return
        if self.status != HTTPStatus.OK:
            fault = Fault.SHED if self.status in _SHED_STATUSES else Fault.REFUSED
            self.end(fault, f"HTTP {self.status}: {refusal_text(self._refusal)}")
            return
        self._note(self.reader.end(lost=lost), now)
        if flaw := self.reader.flaw(most=self.request.maximum_tokens, ignore_eos=True):
            self.end(_FAULTS[flaw[0]], flaw[1])
