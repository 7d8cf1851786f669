"""Requests, text and responses of every served model `llm`, whichever engine is behind it.

This file is copied into a model repository beside `llm/1/model.py` and `served_model.py`. It runs in Triton's stub
process and therefore stands alone: standard library, numpy and triton_python_backend_utils.

Responses of a streaming request carry pieces of `text_output` with the number of tokens behind each in `output_tokens`;
the first one has the prompt's `input_tokens`, so that a client that leaves early has them, and the last one a
`finish_reason`. A request without `stream` gets one response. With `echo` the text begins with the prompt's.

With `logprobs` each piece has those of its tokens, a JSON list of `{"token": text, "bytes": [...], "logprob": number,
"top": [[text, number], ...]}`: natural logarithms of the model's own probabilities, whatever chose the token. With
`echo` those of the prompt come first, and the first of them is null.
"""

from __future__ import annotations

import ctypes
import functools
import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
DEFAULT_OUTPUT_TOKENS = 16
MAXIMUM_STOP_WORDS = 8
MAXIMUM_LOGPROBS = 20
MAXIMUM_SCHEMA_BYTES = 65536
ALL_THERE_IS_ROOM_FOR = -1
"""As `max_tokens`: as many as the prompt leaves room for."""

SAMPLING: dict[str, tuple[float, float]] = {
    "temperature": (0, 2), "top_p": (1e-6, 1), "top_k": (0, 2**31 - 1), "min_p": (0, 0.999),
    "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2), "repetition_penalty": (0.1, 10),
    "seed": (-(2**63), 2**63 - 1),
}  # fmt: skip
"""How tokens may be chosen, each from its least to its largest value; a `top_k` of 0 takes all tokens."""

NOT_INPUTS = frozenset({
    "beam_width", "best_of", "bad_words", "echo", "grammar", "guided_json", "guided_regex", "input_ids", "json_schema",
    "length_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_new_tokens", "min_length", "min_tokens",
    "n", "no_repeat_ngram_size", "num_beams", "random_seed", "response_format", "runtime_top_k", "runtime_top_p",
    "stop_words", "top_logprobs", "typical_p", *SAMPLING,
})  # fmt: skip
"""Triton takes fields that are no inputs for parameters. These would change the answer, so they are refused."""

CANCELLATION_POLL_SECONDS = 0.02
SHUTDOWN_SECONDS = 5.0
INCOMPLETE = "\ufffd"
LEAST_LOGPROB = -9999.0
"""As OpenAI's servers write that a token cannot be: JSON has no infinity."""

PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))
BYTE_CHARACTERS = dict(
    zip(map(chr, (*PRINTED, *range(256, 324))), (*PRINTED, *sorted({*range(256)} - {*PRINTED})), strict=True)
)
"""The bytes that characters stand for in the vocabularies of byte-level tokenizers (GPT-2's table)."""

FEW_TOKENS = 16
"""Of one piece: more come at once only with whole answers."""


class RefusedError(Exception):
    """A request that is answered with an error: its Triton code, outcome label and message."""

    def __init__(self, code: int, outcome: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.outcome = outcome


def invalid(message: str) -> RefusedError:
    """The error of a request that is wrong."""
    return RefusedError(pb_utils.TritonError.INVALID_ARG, "invalid", message)


def unavailable(message: str) -> RefusedError:
    """The error of a request to be sent again later, or to another server."""
    return RefusedError(pb_utils.TritonError.UNAVAILABLE, "rejected", message)


def failure(message: str) -> RefusedError:
    """The error of a request that failed by a fault of the engine or of this code."""
    return RefusedError(pb_utils.TritonError.INTERNAL, "failed", message)


@dataclass(frozen=True)
class Limits:
    """The engine's limits, from the parameters of `config.pbtxt`."""

    maximum_sequences: int
    maximum_tokens_per_request: int
    maximum_batched_tokens: int
    maximum_queued_requests: int
    kv_cache_blocks: int

    @property
    def accepted(self) -> int:
        """Requests that may wait or run at a time."""
        return self.maximum_sequences + self.maximum_queued_requests


@dataclass(frozen=True)
class Inputs:
    """A request's inputs, within the limits that can be checked without a tokenizer.

    Attributes:
        prompt: The text; empty where the request has its tokens.
        input_ids: The tokens; empty where the request has a text.
        add_special_tokens: Whether the tokenizer adds the model's own to a text; None where the request does not say.
        stop_words: The answer ends before the first of them.
        maximum_tokens: Of the answer; `ALL_THERE_IS_ROOM_FOR` until the prompt's length is known.
        sampling: What the request says of `SAMPLING`, and nothing else; greedy without a temperature.
        ignore_eos: End tokens end nothing.
        stream: The answer is sent in pieces.
        echo: The answer begins with the prompt.
        logprobs: How many of the likeliest tokens are told with each token; None for none, and not its own either.
        json_schema: What the text must be; empty for any text.
    """

    prompt: str
    input_ids: tuple[int, ...]
    add_special_tokens: bool | None
    stop_words: tuple[str, ...]
    maximum_tokens: int
    sampling: dict[str, Any]
    ignore_eos: bool
    stream: bool
    echo: bool
    logprobs: int | None
    json_schema: str

    @staticmethod
    def read(request: Any, limits: Limits) -> Inputs:
        """Read a request; raises `RefusedError` for inputs outside of the limits."""
        refuse_parameters(request)
        given = {tensor.name(): tensor.as_numpy().reshape(-1).tolist() for tensor in request.inputs()}
        one = {name: values[0] for name, values in given.items() if values}
        prompt, tokens = utf8(one.get("text_input", b""), "text_input"), tuple(given.get("input_ids", ()))
        if not (prompt.strip() or tokens):
            raise invalid("text_input is empty")
        if prompt and tokens:
            raise invalid("text_input and input_ids: give one of them")
        stop_words = tuple(utf8(word, "stop") for word in given.get("stop", ()))
        if len(stop_words) > MAXIMUM_STOP_WORDS or not all(stop_words):
            raise invalid(f"stop takes at most {MAXIMUM_STOP_WORDS} words, none of them empty")
        echo, maximum = one.get("echo", False), one.get("max_tokens", DEFAULT_OUTPUT_TOKENS)
        least, most = 0 if echo else 1, limits.maximum_tokens_per_request
        if not (least <= maximum < most or maximum == ALL_THERE_IS_ROOM_FOR):
            raise invalid(f"max_tokens {maximum} is not in {least}..{most - 1}")
        for name, (smallest, largest) in SAMPLING.items():
            if name in one and not smallest <= one[name] <= largest:  # NaN compares false
                raise invalid(f"{name} {one[name]:g} is not in {smallest:g}..{largest:g}")
        logprobs = one.get("logprobs")
        if logprobs is not None and not 0 <= logprobs <= MAXIMUM_LOGPROBS:
            raise invalid(f"logprobs {logprobs} is not in 0..{MAXIMUM_LOGPROBS}")
        return Inputs(
            prompt,
            tokens,
            one.get("add_special_tokens"),
            stop_words,
            maximum,
            {name: one[name] for name in SAMPLING if name in one},
            ignore_eos=one.get("ignore_eos", False),
            stream=one.get("stream", False),
            echo=echo,
            logprobs=logprobs,
            json_schema=schema(one["json_schema"]) if "json_schema" in one else "",
        )

    @property
    def temperature(self) -> float:
        """0 for the likeliest token always."""
        return float(self.sampling.get("temperature", 0.0))

    def with_room(self, prompt_tokens: int, limits: Limits) -> Inputs:
        """These inputs with the answer's length; refuses a prompt that leaves no room for it."""
        most = limits.maximum_tokens_per_request
        asked = self.maximum_tokens
        maximum = max(1, most - prompt_tokens) if asked == ALL_THERE_IS_ROOM_FOR else asked
        if prompt_tokens + maximum > most:
            raise invalid(f"prompt of {prompt_tokens} tokens and max_tokens {maximum} exceed {most}")
        return replace(self, maximum_tokens=maximum)


def schema(data: bytes) -> str:
    """A JSON schema as text; `{}` stands for any object, as OpenAI's `json_object` does."""
    text = utf8(data, "json_schema")
    try:
        document = json.loads(text) if len(text) <= MAXIMUM_SCHEMA_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise invalid(f"json_schema is not a JSON object of at most {MAXIMUM_SCHEMA_BYTES} bytes")
    return text if document else '{"type": "object", "additionalProperties": true}'


@dataclass
class TokenWindow:
    """Tokens that become text piece by piece, and never show half a character.

    A token's text depends on the tokens before it, so a window of earlier tokens is decoded twice, without and with
    the new ones, and the difference is new. Bytes of an unfinished character decode to U+FFFD and wait.
    """

    tokens: list[int] = field(default_factory=list)
    start: int = 0
    read: int = 0

    def windows(self) -> list[list[int]]:
        """The two token windows to decode."""
        return [self.tokens[self.start : self.read], self.tokens[self.start :]]

    def advance(self, before: str, after: str, *, last: bool) -> str:
        """The new text, from the decoded windows; `last` shows an unfinished character too."""
        if after.endswith(INCOMPLETE) and not last:
            return ""
        self.start, self.read = self.read, len(self.tokens)
        return after[len(before) :]


@dataclass
class Text:
    """Text that grows, and never shows a part of a stop word."""

    stop_words: tuple[str, ...] = ()
    visible: str = ""
    sent: int = 0
    stopped: bool = False

    def append(self, piece: str) -> None:
        """Take new text, and end before the first stop word in it."""
        searched = len(self.visible)
        self.visible += piece
        if not self.stop_words:
            return
        starts = [
            start
            for word in self.stop_words
            if (start := self.visible.find(word, max(0, searched - len(word) + 1))) >= 0
        ]
        if starts:
            self.visible, self.stopped = self.visible[: min(starts)], True

    def take(self, *, last: bool) -> str:
        """The text that may be sent now and was not yet."""
        end = len(self.visible)
        if self.stop_words and not (last or self.stopped):
            end -= self._held_back()
        piece, self.sent = self.visible[self.sent : end], max(self.sent, end)
        return piece

    def _held_back(self) -> int:
        """Length of the longest end of the text that may be the beginning of a stop word."""
        longest = max(map(len, self.stop_words)) - 1
        for length in range(min(longest, len(self.visible)), 0, -1):
            if any(word.startswith(self.visible[-length:]) for word in self.stop_words):
                return length
        return 0


def refuse_parameters(request: Any) -> None:
    """Refuse what would choose other tokens, and is no input of this model."""
    asked = sorted(NOT_INPUTS.intersection(json.loads(request.parameters() or "{}")))
    if asked:
        raise invalid(f"{', '.join(asked)}: not supported by this model, or not as a parameter")


def utf8(data: bytes, name: str) -> str:
    """Bytes as text; anything but UTF-8 is the caller's mistake."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"{name} is not UTF-8: {error}") from error


def is_byte_level(tokenizer: Any) -> bool:
    """Whether a tokenizer of the library `tokenizers` spells bytes by `BYTE_CHARACTERS`."""
    return "ByteLevel" in repr(getattr(tokenizer, "decoder", None))


def token_bytes(token: str, *, byte_level: bool) -> bytes:
    """The bytes of a token as its vocabulary spells it; those of a character may be spread over several tokens."""
    if byte_level and all(character in BYTE_CHARACTERS for character in token):  # added tokens are not spelt so
        return bytes(BYTE_CHARACTERS[character] for character in token)
    if len(token) == len("<0x00>") and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("\u2581", " ").encode(errors="surrogateescape")


def likelihood(token: bytes, logprob: float | None, top: Sequence[tuple[bytes, float]] = ()) -> dict[str, Any]:
    """One token in the output `logprobs`; `top` are the likeliest at its place, in this order."""
    return {
        "token": token.decode(errors="replace"),
        "bytes": list(token),
        "logprob": None if logprob is None else max(logprob, LEAST_LOGPROB),
        "top": [[other.decode(errors="replace"), max(number, LEAST_LOGPROB)] for other, number in top],
    }


def _output(name: str, value: int | str) -> Any:
    array = np.array([value], np.int32) if isinstance(value, int) else np.array([value.encode()], dtype=object)
    return pb_utils.Tensor(name, array)


@functools.cache
def _shared_output(name: str, value: int | str, thread: int) -> Any:  # noqa: ARG001 - part of the cache's key
    """An output of many responses of a thread: Triton writes it to shared memory once, with the first of them.

    Made and written anew, the three outputs took a third of a piece's processor time. Triton writes without Python's
    lock, so no two threads may share one.
    """
    output = _output(name, value)
    keep(output)
    return output


def keep(*objects: Any) -> None:
    """Keep Triton's objects alive until the process ends, whatever else is collected: by then their memory is gone."""
    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def refuse(sender: Any, refusal: RefusedError) -> None:
    """Send an error, whose text says its kind, as the last response: over HTTP Triton answers 400 to each."""
    error = pb_utils.TritonError(f"{refusal.outcome}: {refusal}", refusal.code)
    send(sender, pb_utils.InferenceResponse(error=error))


def send(sender: Any, response: Any, *, last: bool = True) -> None:
    """Send a response; that the client has gone is only logged."""
    outputs = response.output_tensors()
    try:
        sender.send(response, flags=FINAL if last else 0)
    except pb_utils.TritonModelException as error:
        pb_utils.Logger.log_warn(f"llm: a response could not be sent: {error}")
    del outputs  # Triton drops outputs that were not requested without Python's lock: it must not be their last owner


@dataclass
class Reply:
    """The answer to one request while it is generated and sent.

    Attributes:
        sender: Triton's, of the responses.
        stream: Pieces are sent as they come.
        text: What was generated.
        input_tokens: Those not yet reported.
        echoed: The prompt's text, where it begins the answer and was not sent yet.
        logprobs: Of tokens not yet sent; None where they were not asked for.
    """

    sender: Any
    stream: bool
    text: Text
    input_tokens: int
    echoed: str = ""
    logprobs: list[dict[str, Any]] | None = None
    unsent_tokens: int = 0
    checked_at: float = 0.0

    def client_left(self) -> bool:
        """Whether the client is gone; checked rarely, because each check is a message between processes."""
        now = time.monotonic()
        if now - self.checked_at < CANCELLATION_POLL_SECONDS:
            return False
        self.checked_at = now
        return bool(self.sender.is_cancelled())

    def add(self, piece: str, tokens: int, finish_reason: str) -> str:
        """Take what was generated; returns why the answer is complete, empty while it is not."""
        self.text.append(piece)
        self.unsent_tokens += tokens
        return "stop" if self.text.stopped else finish_reason

    def tell(self, logprobs: Iterable[dict[str, Any]]) -> None:
        """Take the likelihoods of tokens, where they were asked for."""
        if self.logprobs is not None:
            self.logprobs += logprobs

    def flush(self, finish_reason: str) -> None:
        """Send what may be sent: pieces of a stream as they come, everything else at the end."""
        last = bool(finish_reason)
        piece = self.text.take(last=last) if self.stream or last else ""
        if piece or last:
            self._send(piece, finish_reason)

    def cancel(self) -> None:
        """Send the last response to a client that has left, or whose server stops."""
        self._send("", "cancelled")

    def _send(self, piece: str, finish_reason: str) -> None:
        tokens, thread = self.unsent_tokens, threading.get_ident()
        outputs = [
            _output("text_output", self.echoed + piece),
            _shared_output("output_tokens", tokens, thread)
            if tokens <= FEW_TOKENS
            else _output("output_tokens", tokens),
            _shared_output("finish_reason", finish_reason, thread),
        ]
        if self.input_tokens:
            outputs.append(_output("input_tokens", self.input_tokens))
        if self.logprobs is not None:
            outputs.append(_output("logprobs", json.dumps(self.logprobs, separators=(",", ":"))))
        send(self.sender, pb_utils.InferenceResponse(outputs), last=bool(finish_reason))
        self.unsent_tokens = self.input_tokens = 0
        self.echoed, self.logprobs = "", None if self.logprobs is None else []


@dataclass(eq=False, kw_only=True)
class Live:
    """One request from its acceptance to its last response.

    Attributes:
        prompt: Its tokens.
        seed: Of what is drawn, where the request names none.
        not_before: When a drill lets it begin, by `time.monotonic()`.
        unread_tokens: Of the window, those whose text was not yet taken.
    """

    reply: Reply
    asked: Inputs
    prompt: list[int]
    seed: int = 0
    not_before: float = 0.0
    window: TokenWindow = field(default_factory=TokenWindow)
    unread_tokens: int = 0
    finish_reason: str = ""

    @property
    def shown_early(self) -> bool:
        """Whether its text is needed before it is complete."""
        return self.reply.stream or bool(self.reply.text.stop_words)

    def advance(self, before: str, after: str) -> str:
        """Take the decoded windows; returns why the answer is complete, empty while it is not."""
        piece = self.window.advance(before, after, last=bool(self.finish_reason))
        tokens, self.unread_tokens = self.unread_tokens, 0
        return self.reply.add(piece, tokens, self.finish_reason)
