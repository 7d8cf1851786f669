"""What a protocol says of requests, answers and metrics, whichever it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

SHOWN_CHARACTERS = 300
KEPT_CHARACTERS = 4096
"""Of a server's words before `shown` cuts them: a secret is found only where all of it is still there."""

_SECRET_CHARACTERS = 4
"""Shorter values are no secrets, and would blot out words."""

_MOST_TOKENS = 1_000_000_000
_decode = json.JSONDecoder().decode


class ErrorInAnswer(Exception):
    """The server says, within an answer, that it cannot be used; the message says why."""


class NotAnAnswer(Exception):
    """What came is no answer of this protocol; the message shows its beginning."""


class Piece(NamedTuple):
    """What one chunk of an answer brought.

    Attributes:
        text: New text.
        tokens: New tokens, as the server counts them. Below 0 where a count corrects an earlier estimate.
        finish_reason: `length`, `stop`, `cancelled` or another word; empty until the answer ends.
        input_tokens: Tokens of the prompt; 0 where the chunk does not say.
    """

    text: str
    tokens: int
    finish_reason: str
    input_tokens: int = 0


@dataclass(frozen=True)
class GenerationParameters:
    """What a request asks for, whichever protocol it is sent by.

    Attributes:
        prompt: Sent as text; the model tokenizes it.
        maximum_tokens: `max_tokens`.
        temperature: 0 is greedy.
        ignore_eos: Generate exactly `maximum_tokens`.
        stop: The answer ends before the first of these words.
    """

    prompt: str
    maximum_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metrics:
    """Names of a server's Prometheus metrics, or of several kinds of servers: those that are there are summed.

    Attributes:
        active: Requests that wait or run.
        requests: Counter of requests that have ended.
        cancelled: Label of that counter for those whose client left.
        output_tokens: Counters of generated tokens.
        kv_cache: Share of the KV cache in use; the first name that is there counts, and its highest value.
    """

    active: tuple[str, ...]
    requests: str
    cancelled: tuple[str, str]
    output_tokens: tuple[str, ...]
    kv_cache: tuple[str, ...]


def decoded(data: bytes) -> dict[str, Any]:
    """A chunk as an object.

    Raises:
        ErrorInAnswer: It holds an error.
        NotAnAnswer: It is no object.
    """
    try:
        chunk = _decode(data.decode())
    except (ValueError, RecursionError):
        raise not_an_answer(data) from None
    if not isinstance(chunk, dict):
        raise not_an_answer(data)
    if error := chunk.get("error"):
        raise ErrorInAnswer(error_text(error)[:KEPT_CHARACTERS])
    if "error" in chunk:
        raise ErrorInAnswer("an error without a message")
    return chunk


def not_an_answer(data: bytes) -> NotAnAnswer:
    """The exception for a chunk that is none."""
    return NotAnAnswer(f"not an answer from the model: {data[:KEPT_CHARACTERS]!r}")


def count(value: Any) -> int:
    """A number of tokens.

    Raises:
        ValueError: It is negative, huge or not finite.
        TypeError: It is no number.
    """
    try:
        number = int(value)
    except OverflowError as error:
        raise ValueError("not a number of tokens") from error
    if not 0 <= number <= _MOST_TOKENS:
        raise ValueError("not a number of tokens")
    return number


def error_text(error: Any) -> str:
    """The message of an error: the text itself, or that in OpenAI's object."""
    if isinstance(error, dict) and error.get("message"):
        error = error["message"]
    return str(error)


def refusal_text(body: bytes) -> str:
    """The reason in the body of a refusal: JSON with an error or a detail, in an event or not, or plain text."""
    try:
        reason = reason_in(json.loads(body.removeprefix(b"data:")))
    except (ValueError, RecursionError):
        reason = ""
    return (reason or body[:KEPT_CHARACTERS].decode(errors="replace"))[:KEPT_CHARACTERS] or "no reason given"


def reason_in(document: Any) -> str:
    """The reason in the JSON of a refusal; empty without one."""
    if not isinstance(document, dict):
        return ""
    found = document.get("error") or document.get("message") or document.get("detail")
    return error_text(found) if found else ""


Flaw = Literal["cut", "cancelled", "ended", "long", "short", "empty"]
"""What can be wrong with an answer that has ended without an error."""


def flaw_of(tokens: int, finish_reason: str, *, most: int, ignore_eos: bool, has_text: bool) -> tuple[Flaw, str] | None:
    """What is wrong with an answer that has ended without an error, and in words; None for a sound one.

    Args:
        tokens: How many came, as the server counts them.
        finish_reason: Of its last chunk; empty when the final chunk is missing.
        most: Tokens that were asked for.
        ignore_eos: Exactly so many were.
        has_text: Whether any text came, or needs to.
    """
    if not finish_reason:
        return "cut", f"the final chunk is missing after {tokens} tokens"
    if finish_reason not in ("length", "stop"):
        flaw: Flaw = "cancelled" if finish_reason == "cancelled" else "ended"
        return flaw, f"the server ended the answer after {tokens} tokens: {finish_reason}"
    if tokens > most:
        return "long", f"{tokens} tokens came, {most} were asked for"
    if tokens < most and (ignore_eos or finish_reason == "length"):
        why = ": the server does not keep ignore_eos" if finish_reason == "stop" else ""
        return "short", f"only {tokens} of {most} tokens came{why}"
    return None if has_text else ("empty", f"{tokens} tokens came, without any text")


def header_secrets(headers: Mapping[str, str]) -> tuple[str, ...]:
    """What of headers' values must be shown nowhere, the longest first; a scheme such as Bearer may be."""
    values = [part for value in headers.values() for part in (value, value.rpartition(" ")[2])]
    return tuple(sorted({value for value in values if len(value) >= _SECRET_CHARACTERS}, key=len, reverse=True))


def without(text: str, secrets: Sequence[str]) -> str:
    """The text with `***` for each of these: servers repeat a wrong key in their errors."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def shown(text: str, secrets: Sequence[str]) -> str:
    """The beginning of a server's words. Secrets are left out first: a cut could leave a part of one."""
    return without(text, secrets)[:SHOWN_CHARACTERS]
