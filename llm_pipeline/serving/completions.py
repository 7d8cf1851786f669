"""How served models are asked: by OpenAI's completions, as ours, vLLM, SGLang, `trtllm-serve` and llama.cpp offer them.

    body = request_body(GenerationParameters("2+2=", 4), model, stream=True)
    reader = CompletionReader(model, stream=True)
    pieces = [reader.take(received) for received in body]  # text, tokens, why the answer ended; then reader.end()
    reader.flaw(most=4, ignore_eos=False)                  # what is wrong with the answer, now that it has ended

Prompts are sent as text to `/v1/completions`: chat templates were applied before, by whoever asks. Beyond OpenAI's own
fields, requests have `ignore_eos`, which all these servers know, and `continuous_usage_stats` so that each chunk of a
stream counts its tokens; a chunk with text that counts none is taken for one token until a later one does.

Standard library only: the load test's client processes read every chunk of an answer through this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

COMPLETIONS_PATH = "/v1/completions"
MODELS_PATH = "/v1/models"

SHOWN_CHARACTERS = 300
KEPT_CHARACTERS = 4096
"""Of a server's words before `shown` cuts them: a secret is found only where all of it is still there."""

_SECRET_CHARACTERS = 4
"""Shorter values are no secrets, and would blot out words."""

_FIELDS = (b":", b"event:", b"id:", b"retry:")  # of a stream of events, beside "data:"
_LONGEST_LINE_BYTES = 1 << 22  # of a stream: far above any chunk
_MOST_TOKENS = 1_000_000_000
_END = b"[DONE]"
_REASONS = {"abort": "cancelled"}
_CHAT = {"delta", "message"}
_decode = json.JSONDecoder().decode


Flaw = Literal["error", "malformed", "cut", "cancelled", "ended", "long", "short", "empty"]
"""What can be wrong with an answer."""


class _WrongAnswer(Exception):
    def __init__(self, flaw: Flaw, said: str) -> None:
        super().__init__(said[:KEPT_CHARACTERS])
        self.flaw = flaw


class Piece(NamedTuple):
    """What one chunk of an answer brought.

    Attributes:
        text: New text.
        tokens: New tokens, as the server counts them. Below 0 where a count corrects an earlier estimate.
        finish_reason: `length`, `stop`, `cancelled` or another word; empty until the answer ends.
    """

    text: str
    tokens: int
    finish_reason: str


@dataclass(frozen=True)
class GenerationParameters:
    """What a request asks for.

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


ACTIVE_REQUESTS = "llm_active_requests"


class Metrics:
    """Names of Prometheus metrics of our own models in Triton, vLLM, SGLang, TensorRT-LLM and llama.cpp's server.

    Those that are there are summed.

    Attributes:
        active: Requests that wait or run.
        cancelled: Counters of ended requests, each with the label of those whose client left.
        input_tokens: Counters of prompts' tokens.
        output_tokens: Counters of generated tokens.
        kv_cache: Share of the KV cache in use; the first name that is there counts, and its highest value.
        drafts: Counters of steps with speculated tokens.
        accepted: Counters of speculated tokens that were right.
    """

    active = (
        ACTIVE_REQUESTS,
        *("vllm:num_requests_running", "vllm:num_requests_waiting"),
        *("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        *("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
        *("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    )
    cancelled = (
        ("llm_requests_total", ("outcome", "cancelled")),
        ("vllm:request_success_total", ("finished_reason", "abort")),
    )
    input_tokens = (
        *("llm_input_tokens_total", "vllm:prompt_tokens_total"),
        *("sglang:prompt_tokens_total", "trtllm_prompt_tokens_total"),
    )
    output_tokens = (
        *("llm_tokens_total", "vllm:generation_tokens_total", "sglang:generation_tokens_total"),
        *("trtllm_generation_tokens_total", "llamacpp:tokens_predicted_total"),
    )
    kv_cache = (
        *("llm_kv_cache_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        *("sglang:token_usage", "trtllm_kv_cache_utilization"),
    )
    drafts = ("llm_drafts_total", "vllm:spec_decode_num_drafts_total")
    accepted = ("llm_accepted_total", "vllm:spec_decode_num_accepted_tokens_total")


def request_body(asked: GenerationParameters, model: str | None, *, stream: bool) -> dict[str, Any]:
    """The JSON body of a request.

    Args:
        asked: What is asked for.
        model: Its name at the server; None for one of ours, which serves one.
        stream: The answer comes in chunks.
    """
    body: dict[str, Any] = {} if model is None else {"model": model}
    body |= {
        "prompt": asked.prompt,
        "max_tokens": asked.maximum_tokens,
        "temperature": asked.temperature,
        "stream": stream,
    }
    if asked.temperature == 0:
        body["repetition_penalty"] = 1.0  # or that of generation_config.json would change what is likeliest
    if asked.ignore_eos:
        body["ignore_eos"] = True
    if asked.stop:
        body["stop"] = list(asked.stop)
    if stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return body


def bad_bodies(model: str | None, long_prompt: str | None) -> Mapping[str, bytes]:
    """Requests that must be refused with a reason, by what is wrong with them.

    Servers differ on the rest: OpenAI's API allows an empty prompt, and cuts `max_tokens` to what fits; llama.cpp's
    server takes -1 of them for no limit, and answers for its only model whatever a request calls it.

    Args:
        model: As in `request_body`.
        long_prompt: A prompt that is far too long for the model; None where its limit is not known.
    """
    named = {} if model is None else {"model": model}
    bodies: dict[str, dict[str, Any]] = {
        "no prompt": {"max_tokens": 4},
        "max_tokens of the wrong type": {"prompt": "1", "max_tokens": "many"},
    }
    if long_prompt is not None:
        bodies["a prompt far too long"] = {"prompt": long_prompt, "max_tokens": 4}
    return {"not JSON": b"{", **{what: json.dumps({**named, **body}).encode() for what, body in bodies.items()}}


class CompletionReader:
    """Reads one completion; tokens are the server's `usage`, and one a chunk until it says.

    Args:
        model: The only one whose answer is accepted; None for any.
        stream: The answer comes in chunks.

    Attributes:
        tokens: Of the answer so far.
        input_tokens: Of the prompt; 0 until the server says.
        finish_reason: As in `Piece`.
        wrong: What makes the answer no answer, and in words; once there is something, no more needs to be read.
    """

    __slots__ = (
        *("finish_reason", "input_tokens", "tokens", "wrong"),
        *("_ended", "_has_text", "_model", "_pending", "_stray", "_stream", "_usage"),
    )

    def __init__(self, model: str | None, *, stream: bool) -> None:
        self._model, self._stream = model, stream
        self.finish_reason, self.tokens, self.input_tokens = "", 0, 0
        self.wrong: tuple[Flaw, str] | None = None
        self._pending = self._stray = b""
        self._usage = self._ended = self._has_text = False

    def take(self, body: bytes) -> list[Piece]:
        """What the next bytes of the body bring; they may be cut anywhere."""
        if self._pending:
            body = self._pending + body
        if not self._stream:
            self._pending = body
            return []
        *lines, self._pending = body.split(b"\n")
        pieces = []
        for line in lines:
            if line.startswith(b"data:"):
                if piece := self._read(line[5:]):
                    pieces.append(piece)
            elif line and not line.startswith(_FIELDS) and len(self._stray) < KEPT_CHARACTERS:
                self._stray = (self._stray + b" " + line).strip()  # other text, which may say why there is no answer
        if len(self._pending) > _LONGEST_LINE_BYTES and not self.wrong:
            self.wrong = "malformed", f"more than {_LONGEST_LINE_BYTES} bytes without an end"
        return pieces

    def end(self, *, lost: bool = False) -> list[Piece]:
        """What the end of the body brings; where the connection was lost, what is no whole line counts for nothing."""
        if lost:
            self._pending = b""
        pieces, rest = (self.take(b"\n"), self._stray) if self._stream else ([], self._pending)
        if not self._stream or (rest and not self.finish_reason and not self.tokens):
            piece = self._read(rest)  # of a stream, it is none at all: an error in JSON, or a page of a proxy
            pieces += [piece] if piece else []
        return pieces

    def flaw(self, *, most: int, ignore_eos: bool, allow_empty: bool = False) -> tuple[Flaw, str] | None:
        """What is wrong with the answer, now that it has ended, and in words; None for a sound one.

        Args:
            most: Tokens that were asked for.
            ignore_eos: Exactly so many were.
            allow_empty: It needs no text.
        """
        tokens, reason = self.tokens, self.finish_reason
        if self.wrong:
            return self.wrong
        if not reason:
            said = f"; the server said: {self._stray.decode(errors='replace')}" if self._stray else ""
            return "cut", f"the final chunk is missing after {tokens} tokens{said}"
        if not self._usage:
            return "cut", "the answer has no usage: how many tokens it has is not known"
        if self._stream and not self._ended:
            return "cut", "the stream's end mark [DONE] is missing"
        if reason not in ("length", "stop"):
            flaw: Flaw = "cancelled" if reason == "cancelled" else "ended"
            return flaw, f"the server ended the answer after {tokens} tokens: {reason}"
        if tokens > most:
            return "long", f"{tokens} tokens came, {most} were asked for"
        if tokens < most and (ignore_eos or reason == "length"):
            why = ": the server does not keep ignore_eos" if reason == "stop" else ""
            return "short", f"only {tokens} of {most} tokens came{why}"
        return None if self._has_text or allow_empty else ("empty", f"{tokens} tokens came, without any text")

    def _read(self, data: bytes) -> Piece | None:
        """Read the data of one event, or a whole answer; None for an end mark, or what is wrong."""
        if self.wrong:
            return None
        try:
            if self._stream and not self._ended and data.strip() == _END:
                self._ended = True
                return None
            chunk = _decoded(data)
            if self._ended:
                raise _not_an_answer(data)
            self._require_model(chunk["model"])
            text = self._choice(chunk["choices"])
            tokens = self._count(chunk.get("usage"), text)
        except _WrongAnswer as wrong:
            self.wrong = wrong.flaw, str(wrong)
            return None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            self.wrong = "malformed", str(_not_an_answer(data))
            return None
        if text:
            self._has_text = True
        return Piece(text, tokens, self.finish_reason)

    def _require_model(self, name: Any) -> None:
        if self._model is not None and name != self._model:
            shown = str(name)[:SHOWN_CHARACTERS]
            raise _WrongAnswer("error", f"the model {shown!r} answered, and {self._model!r} was asked")

    def _choice(self, choices: list[Any]) -> str:
        """The text of the only choice; empty for a chunk that has usage or the finish reason alone."""
        if not choices and self._stream:
            return ""
        (choice,) = choices
        text, reason = choice.get("text"), choice.get("finish_reason")
        if text is None and self._stream and not choice.keys() & _CHAT:
            text = ""  # LiteLLM leaves it out of its last chunks
        if not isinstance(text, str) or not isinstance(reason, str | None):
            raise TypeError("a completion has text")
        if reason:
            self.finish_reason = _REASONS.get(reason, reason)
        return text

    def _count(self, usage: Any, text: str) -> int:
        """New tokens."""
        before = self.tokens
        if usage is None:
            self.tokens += bool(text)
        else:
            self._usage = True
            self.tokens = _count(usage["completion_tokens"])
            self.input_tokens = max(self.input_tokens, _count(usage.get("prompt_tokens", 0)))
        return self.tokens - before


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        chunk = _decode(data.decode())
    except (ValueError, RecursionError):
        raise _not_an_answer(data) from None
    if not isinstance(chunk, dict):
        raise _not_an_answer(data)
    if "error" in chunk:
        raise _WrongAnswer("error", _error_text(chunk["error"] or "an error without a message"))
    return chunk


def _not_an_answer(data: bytes) -> _WrongAnswer:
    return _WrongAnswer("malformed", f"not an answer from the model: {data[:KEPT_CHARACTERS]!r}")


def _count(value: Any) -> int:
    """A number of tokens; raises an error for what is none, negative, huge or not finite."""
    number = int(value)
    if not 0 <= number <= _MOST_TOKENS:
        raise ValueError("not a number of tokens")
    return number


def _error_text(error: Any) -> str:
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
    return _error_text(found) if found else ""


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
