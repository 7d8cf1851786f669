"""What is wrong with an answer, by kind: the rules of `serving/client.py`.

A failure is data: Triton answers HTTP 200 with an `error` key for some, ends a broken stream without a word, and puts
no end marker on a whole one, so that every answer is checked.
"""

from __future__ import annotations

from http import HTTPStatus

from llm_pipeline.loadtest.faults import Fault
from llm_pipeline.loadtest.traffic import LoadRequest
from llm_pipeline.serving.protocols import refusal_text

_SHED_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_SHED_TEXTS = ("exceeds maximum queue size", "request timeout expired", "queue full", "server is stopping")
"""What UNAVAILABLE says under HTTP 200 and 400: Triton's scheduler_utils.cc, dynamic_batch_scheduler.cc, our models."""


def judge_refusal(status: int, body: bytes) -> tuple[Fault, str]:
    """An answer of another status than 200; `generate_stream` refuses in an event, `generate` in plain JSON."""
    text = refusal_text(body)
    shed = status in _SHED_STATUSES or _says_shed(text)  # Triton answers every error of a decoupled model with 400
    return (Fault.SHED if shed else Fault.REFUSED), f"HTTP {status}: {text}"


def judge_error(text: str) -> Fault:
    """An error inside an answer of HTTP 200."""
    return Fault.SHED if _says_shed(text) else Fault.ERROR_IN_ANSWER


def _says_shed(text: str) -> bool:
    return any(known in text.lower() for known in _SHED_TEXTS)


def judge_whole(request: LoadRequest, tokens: int, finish_reason: str, *, has_text: bool) -> tuple[Fault, str]:
    """An answer that arrived without an error.

    Args:
        request: What was asked.
        tokens: How many came, as the server counts them.
        finish_reason: Of its last chunk; empty when the final chunk is missing.
        has_text: Whether any text came.
    """
    if fault := _bad_end(tokens, finish_reason):
        return fault
    asked = request.maximum_tokens
    if tokens > asked:
        return Fault.LONG, f"{tokens} tokens came, {asked} were asked for"
    if tokens < asked and (request.ignore_eos or finish_reason == "length"):
        return Fault.SHORT, f"only {tokens} of {asked} tokens came"
    return (Fault.NONE, "") if has_text else (Fault.EMPTY, f"{tokens} tokens came, without any text")


def _bad_end(tokens: int, finish_reason: str) -> tuple[Fault, str] | None:
    if not finish_reason:
        return Fault.CUT, f"the final chunk is missing after {tokens} tokens"
    if finish_reason in ("length", "stop"):
        return None
    fault = Fault.CANCELLED if finish_reason == "cancelled" else Fault.ERROR_IN_ANSWER
    return fault, f"the server ended the answer after {tokens} tokens: {finish_reason}"
