"""Requests, text and responses of every served model `llm`, whichever engine is behind it.

This file is copied into a model repository beside `llm/1/model.py` and `served_model.py`. It runs in Triton's stub
process and therefore stands alone: standard library, numpy and triton_python_backend_utils.

Responses of a streaming request carry pieces of `text_output` with the number of tokens behind each in `output_tokens`;
the first one has the prompt's `input_tokens`, so that a client that leaves early has them, and the last one a
`finish_reason`. A request without `stream` gets one response.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
DRILL_VARIABLE = "LLM_PIPELINE_DRILL"
DEFAULT_OUTPUT_TOKENS = 16
ALL_THERE_IS_ROOM_FOR = -1
"""As `max_tokens`: whoever asks does not know how many tokens the prompt has."""

MAXIMUM_TEMPERATURE = 2.0
MAXIMUM_STOP_WORDS = 8
OTHER_SAMPLING = frozenset({
    "beam_width", "best_of", "bad_words", "frequency_penalty", "grammar", "guided_json", "guided_regex", "json_schema",
    "length_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_new_tokens", "min_length", "min_p",
    "min_tokens", "n", "no_repeat_ngram_size", "num_beams", "presence_penalty", "random_seed", "repetition_penalty",
    "response_format", "runtime_top_k", "runtime_top_p", "seed", "stop_words", "top_k", "top_p", "typical_p",
})  # fmt: skip
"""Sampling options of other servers. They would change the answer, so they are refused and not ignored."""

CANCELLATION_POLL_SECONDS = 0.02
SHUTDOWN_SECONDS = 5.0
INCOMPLETE = "\ufffd"
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

    @staticmethod
    def from_parameters(parameters: dict[str, str]) -> Limits:
        """Read the limits; a missing one raises KeyError, which fails the load."""
        return Limits(**{name: int(parameters[name]) for name in Limits.__dataclass_fields__})

    @property
    def accepted(self) -> int:
        """Requests that may wait or run at a time."""
        return self.maximum_sequences + self.maximum_queued_requests


@dataclass
class Drill:
    """An injected fault for drills: `{"delay_milliseconds": 0, "failure_fraction": 0}` in the environment."""

    delay_seconds: float = 0.0
    failure_fraction: float = 0.0
    seen: int = 0

    @staticmethod
    def from_environment() -> Drill:
        """The drill of this process; none without the variable."""
        document = json.loads(os.environ.get(DRILL_VARIABLE) or "{}")
        return Drill(float(document.get("delay_milliseconds", 0)) / 1e3, float(document.get("failure_fraction", 0)))

    def fail_if_due(self) -> None:
        """Fail the due share of requests, evenly spread, so that the share is exact at any time."""
        self.seen += 1
        if int(self.seen * self.failure_fraction) > int((self.seen - 1) * self.failure_fraction):
            raise failure("drill: this request fails on purpose")

    def __str__(self) -> str:
        return f", DRILL {self!r}" if os.environ.get(DRILL_VARIABLE) else ""


@dataclass(frozen=True)
class Inputs:
    """A request's inputs, within the limits that can be checked without a tokenizer."""

    prompt: str
    stop_words: tuple[str, ...]
    maximum_tokens: int
    temperature: float
    ignore_eos: bool
    stream: bool

    @staticmethod
    def read(request: Any, limits: Limits) -> Inputs:
        """Read a request; raises `RefusedError` for inputs outside of the limits."""
        refuse_other_sampling(request)
        prompt = utf8(scalar(request, "text_input", b""), "text_input")
        if not prompt.strip():
            raise invalid("text_input is empty")
        stop_words = tuple(utf8(word, "stop") for word in tensor_values(request, "stop"))
        if len(stop_words) > MAXIMUM_STOP_WORDS or not all(stop_words):
            raise invalid(f"stop takes at most {MAXIMUM_STOP_WORDS} words, none of them empty")
        maximum, most = int(scalar(request, "max_tokens", DEFAULT_OUTPUT_TOKENS)), limits.maximum_tokens_per_request
        if maximum != ALL_THERE_IS_ROOM_FOR and not 1 <= maximum < most:
            raise invalid(f"max_tokens {maximum} is not in 1..{most - 1}")
        temperature = float(scalar(request, "temperature", 0.0))
        if not 0.0 <= temperature <= MAXIMUM_TEMPERATURE:  # NaN compares false
            raise invalid(f"temperature {temperature} is not in 0..{MAXIMUM_TEMPERATURE}")
        return Inputs(
            prompt,
            stop_words,
            maximum,
            temperature,
            ignore_eos=bool(scalar(request, "ignore_eos", default=False)),
            stream=bool(scalar(request, "stream", default=False)),
        )

    def with_room(self, prompt_tokens: int, limits: Limits) -> Inputs:
        """The inputs with a number of `maximum_tokens`; refuses a prompt that leaves no room for the answer."""
        most, asked = limits.maximum_tokens_per_request, self.maximum_tokens
        maximum = max(1, most - prompt_tokens) if asked == ALL_THERE_IS_ROOM_FOR else asked
        if prompt_tokens + maximum > most:
            raise invalid(f"prompt of {prompt_tokens} tokens and max_tokens {maximum} exceed {most}")
        return replace(self, maximum_tokens=maximum)


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


def parameters(args: dict[str, str]) -> dict[str, str]:
    """The parameters of `config.pbtxt`, from the arguments of `initialize`."""
    configured = json.loads(args["model_config"])["parameters"]
    return {name: value["string_value"] for name, value in configured.items()}


def tensor_values(request: Any, name: str) -> list[Any]:
    """An input's elements; empty when it was not sent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return [] if tensor is None else list(tensor.as_numpy().reshape(-1))


def scalar(request: Any, name: str, default: Any) -> Any:
    """An input's single element, or the default."""
    return next(iter(tensor_values(request, name)), default)


def refuse_other_sampling(request: Any) -> None:
    """Refuse ways to choose tokens that this model does not offer; Triton takes unknown fields for parameters."""
    asked = sorted(OTHER_SAMPLING.intersection(json.loads(request.parameters() or "{}")))
    if asked:
        raise invalid(f"{', '.join(asked)}: not supported; use temperature, max_tokens and stop")


def utf8(data: bytes, name: str) -> str:
    """Bytes as text; anything but UTF-8 is the caller's mistake."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"{name} is not UTF-8: {error}") from error


def answer(text: str, tokens: int, finish_reason: str, *, input_tokens: int = 0) -> Any:
    """One response of the served model; without `input_tokens` where that is 0."""
    thread = threading.get_ident()
    tensors = [
        _output("text_output", text),
        _shared_output("output_tokens", tokens, thread) if tokens <= FEW_TOKENS else _output("output_tokens", tokens),
        _shared_output("finish_reason", finish_reason, thread),
    ]
    if input_tokens:
        tensors.append(_output("input_tokens", input_tokens))
    return pb_utils.InferenceResponse(tensors)


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


def error_answer(refusal: RefusedError) -> Any:
    """A response that carries an error."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(refusal), refusal.code))


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
    """The answer to one request while it is generated and sent; `input_tokens` are those not yet reported."""

    sender: Any
    stream: bool
    text: Text
    input_tokens: int
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

    def flush(self, finish_reason: str) -> None:
        """Send what may be sent: pieces of a stream as they come, everything else at the end."""
        last = bool(finish_reason)
        piece = self.text.take(last=last) if self.stream or last else ""
        if piece or last:
            self._send(piece, finish_reason)

    def cancel(self) -> None:
        """Send the last response to a client that has left, or whose server stops."""
        self._send("", "cancelled")

    def refuse(self, refusal: RefusedError) -> None:
        """The last response is an error."""
        send(self.sender, error_answer(refusal))

    def _send(self, piece: str, finish_reason: str) -> None:
        response = answer(piece, self.unsent_tokens, finish_reason, input_tokens=self.input_tokens)
        send(self.sender, response, last=bool(finish_reason))
        self.unsent_tokens = self.input_tokens = 0
