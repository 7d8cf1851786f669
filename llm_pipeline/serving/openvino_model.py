"""The model that Triton's python backend serves: tokenize, generate in flight, detokenize, in one decoupled model.

This file is copied into a model repository as `llm/1/model.py`, beside `engine/`. It runs in Triton's stub process
and therefore stands alone: standard library, numpy, openvino_genai and triton_python_backend_utils.

One model rather than an ensemble, because cancellation does not pass through an ensemble. One thread owns the
engine: it admits requests, steps the batch and sends what was generated; Triton's thread only checks and queues.

Responses of a streaming request carry pieces of `text_output` with the number of tokens behind each in
`output_tokens`; the last one has a `finish_reason`. A request without `stream` gets one response.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai as genai
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
DRILL_VARIABLE = "LLM_PIPELINE_DRILL"
DEFAULT_OUTPUT_TOKENS = 16
MAXIMUM_TEMPERATURE = 2.0
MAXIMUM_STOP_WORDS = 8
CANCELLATION_POLL_SECONDS = 0.02
IDLE_POLL_SECONDS = 0.5
SHUTDOWN_SECONDS = 5.0
INCOMPLETE = "\ufffd"


class RefusedError(Exception):
    """A request that is answered with an error: its Triton code, outcome label and message."""

    def __init__(self, code: int, outcome: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.outcome = outcome


def invalid(message: str) -> RefusedError:
    """The caller's mistake."""
    return RefusedError(pb_utils.TritonError.INVALID_ARG, "invalid", message)


def unavailable(message: str) -> RefusedError:
    """Try again later, or elsewhere."""
    return RefusedError(pb_utils.TritonError.UNAVAILABLE, "rejected", message)


def failure(message: str) -> RefusedError:
    """Our mistake."""
    return RefusedError(pb_utils.TritonError.INTERNAL, "failed", message)


@dataclass(frozen=True)
class Limits:
    """What the engine takes at once; from the parameters of `config.pbtxt`."""

    maximum_sequences: int
    maximum_tokens_per_request: int
    maximum_batched_tokens: int
    maximum_queued_requests: int
    kv_cache_blocks: int

    @staticmethod
    def from_parameters(parameters: dict[str, str]) -> Limits:
        """Read the limits; a missing one raises KeyError, which fails the load."""
        return Limits(**{name: int(parameters[name]) for name in Limits.__dataclass_fields__})


@dataclass
class Drill:
    """A fault on purpose: `{"delay_milliseconds": 0, "failure_fraction": 0}` in the environment."""

    delay_seconds: float = 0.0
    failure_fraction: float = 0.0
    seen: int = 0

    @staticmethod
    def from_environment() -> Drill:
        """The drill of this process; none without the variable."""
        document = json.loads(os.environ.get(DRILL_VARIABLE) or "{}")
        return Drill(float(document.get("delay_milliseconds", 0)) / 1e3, float(document.get("failure_fraction", 0)))

    def fails_next(self) -> bool:
        """Whether the next request must fail: evenly spread, so that the share is exact at any time."""
        self.seen += 1
        return int(self.seen * self.failure_fraction) > int((self.seen - 1) * self.failure_fraction)


@dataclass
class Text:
    """Text that grows token by token, without ever showing half a character or a part of a stop word.

    A token's text depends on the tokens before it, so a window of earlier tokens is decoded twice, without and with
    the new ones, and the difference is new. Bytes of an unfinished character decode to U+FFFD and wait.
    """

    stop_words: tuple[str, ...] = ()
    tokens: list[int] = field(default_factory=list)
    visible: str = ""
    sent: int = 0
    stopped: bool = False
    window_start: int = 0
    window_read: int = 0

    def windows(self) -> list[list[int]]:
        """The two token windows to decode."""
        return [self.tokens[self.window_start : self.window_read], self.tokens[self.window_start :]]

    def advance(self, before: str, after: str, *, last: bool) -> None:
        """Take the decoded windows; `last` shows an unfinished character too."""
        if after.endswith(INCOMPLETE) and not last:
            return
        self.window_start, self.window_read = self.window_read, len(self.tokens)
        searched = len(self.visible)
        self.visible += after[len(before) :]
        self._cut_at_stop_word(searched)

    def _cut_at_stop_word(self, searched: int) -> None:
        starts = [
            start
            for word in self.stop_words
            if (start := self.visible.find(word, max(0, searched - len(word) + 1))) >= 0
        ]
        if starts:
            self.visible, self.stopped = self.visible[: min(starts)], True

    def take(self, *, last: bool) -> str:
        """The text that may be sent now and was not yet."""
        end = len(self.visible) if last or self.stopped else len(self.visible) - self._held_back()
        piece, self.sent = self.visible[self.sent : end], max(self.sent, end)
        return piece

    def _held_back(self) -> int:
        """Length of the longest end of the text that may be the beginning of a stop word."""
        longest = max((len(word) for word in self.stop_words), default=1) - 1
        for length in range(min(longest, len(self.visible)), 0, -1):
            if any(word.startswith(self.visible[-length:]) for word in self.stop_words):
                return length
        return 0


@dataclass
class Live:
    """One request from its acceptance to its last response."""

    sender: Any
    prompt: Any
    generation: Any
    stream: bool
    text: Text
    not_before: float
    handle: Any = None
    finish_reason: str = ""
    unsent_tokens: int = 0
    checked_at: float = 0.0

    def cancelled(self, now: float) -> bool:
        """Whether the client is gone; asked seldom, because each question is a message between processes."""
        if now - self.checked_at < CANCELLATION_POLL_SECONDS:
            return False
        self.checked_at = now
        return bool(self.sender.is_cancelled())

    def read(self) -> int:
        """Collect what the engine generated, and whether the request ended; returns the number of new tokens."""
        new: list[int] = []
        while self.handle.can_read():
            for output in self.handle.read().values():
                new += output.generated_ids
                if output.finish_reason != genai.GenerationFinishReason.NONE:
                    self.finish_reason = output.finish_reason.name.lower()
        self.text.tokens += new
        self.unsent_tokens += len(new)
        status = self.handle.get_status()
        if status == genai.GenerationStatus.IGNORED:
            raise unavailable("the request does not fit into the KV cache")
        if status != genai.GenerationStatus.RUNNING and not self.finish_reason:
            self.finish_reason = "cancelled"
        return len(new)


class Metrics:
    """The model's own metrics, on Triton's metrics endpoint.

    One call at a time: two threads in the metric calls of one stub end the whole server (2.51) with a segmentation
    fault.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        family, self._families = pb_utils.MetricFamily, []
        requests = family(name="llm_requests_total", description="requests by outcome", kind=family.COUNTER)
        tokens = family(name="llm_tokens_total", description="generated tokens", kind=family.COUNTER)
        active = family(name="llm_active_requests", description="requests accepted, not ended", kind=family.GAUGE)
        self._families += [requests, tokens, active]  # a family that is collected takes its metrics with it
        outcomes = ("completed", "cancelled", "rejected", "invalid", "failed")
        self._outcomes = {outcome: requests.Metric(labels={"outcome": outcome}) for outcome in outcomes}
        self._tokens, self._active = tokens.Metric(labels={}), active.Metric(labels={})

    def ended(self, outcome: str) -> None:
        """Count a request that ended."""
        with self._lock:
            self._outcomes[outcome].increment(1)

    def generated(self, tokens: int) -> None:
        """Count generated tokens."""
        with self._lock:
            self._tokens.increment(tokens)

    def active(self, requests: int) -> None:
        """Set the number of live requests."""
        with self._lock:
            self._active.set(requests)


def tensor_values(request: Any, name: str) -> list[Any]:
    """An input's elements; empty when it was not sent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return [] if tensor is None else list(tensor.as_numpy().reshape(-1))


def scalar(request: Any, name: str, default: Any) -> Any:
    """An input's single element, or the default."""
    return next(iter(tensor_values(request, name)), default)


def utf8(data: bytes, name: str) -> str:
    """Bytes as text; anything but UTF-8 is the caller's mistake."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"{name} is not UTF-8: {error}") from error


def error_response(code: int, message: str) -> Any:
    """A response that carries an error."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))


class TritonPythonModel:
    """The entry points that Triton calls, and the thread that owns the engine."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine and start its thread; an exception here makes the model unavailable."""
        configuration = json.loads(args["model_config"])["parameters"]
        self._limits = Limits.from_parameters({key: value["string_value"] for key, value in configuration.items()})
        self._version = int(args["model_version"])
        self._engine = Path(args["model_repository"]) / args["model_version"] / "engine"
        self._drill = Drill.from_environment()
        self._metrics = Metrics()
        self._condition = threading.Condition()
        self._inbox: deque[Live] = deque()
        self._live: list[Live] = []
        self._accepted, self._numbers, self._stopping = 0, 0, False
        self._pipeline: Any = None
        started = time.monotonic()
        self._load_engine()
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()
        drill = f", DRILL {self._drill}" if os.environ.get(DRILL_VARIABLE) else ""
        pb_utils.Logger.log_info(f"llm: engine loaded in {time.monotonic() - started:.2f} s, {self._limits}{drill}")

    def execute(self, requests: list[Any]) -> None:
        """Check and queue requests; every answer goes through its response sender."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._queue(self._accept(request, sender))
            except RefusedError as refusal:
                self._metrics.ended(refusal.outcome)
                sender.send(error_response(refusal.code, str(refusal)), flags=FINAL)

    def finalize(self) -> None:
        """Stop the thread; requests that are still live end as cancelled."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(SHUTDOWN_SECONDS)
        self._pipeline = None

    # Triton's thread

    def _accept(self, request: Any, sender: Any) -> Live:
        if self._drill.fails_next():
            raise failure("drill: this request fails on purpose")
        prompt = utf8(scalar(request, "text_input", b""), "text_input")
        if not prompt.strip():
            raise invalid("text_input is empty")
        stop_words = tuple(utf8(word, "stop") for word in tensor_values(request, "stop"))
        if len(stop_words) > MAXIMUM_STOP_WORDS or not all(stop_words):
            raise invalid(f"stop takes at most {MAXIMUM_STOP_WORDS} words, none of them empty")
        generation = self._generation(request)
        ids = self._tokenizer.encode(prompt).input_ids
        tokens, limit = ids.shape[1] + generation.max_new_tokens, self._limits.maximum_tokens_per_request
        if tokens > limit:
            raise invalid(f"prompt of {ids.shape[1]} tokens and max_tokens {generation.max_new_tokens} exceed {limit}")
        return Live(
            sender=sender,
            prompt=ids,
            generation=generation,
            stream=bool(scalar(request, "stream", False)),
            text=Text(stop_words),
            not_before=time.monotonic() + self._drill.delay_seconds,
        )

    def _generation(self, request: Any) -> Any:
        config = genai.GenerationConfig()
        maximum, limit = int(scalar(request, "max_tokens", DEFAULT_OUTPUT_TOKENS)), self._limits
        if not 1 <= maximum < limit.maximum_tokens_per_request:
            raise invalid(f"max_tokens {maximum} is not in 1..{limit.maximum_tokens_per_request - 1}")
        temperature = float(scalar(request, "temperature", 0.0))
        if not 0.0 <= temperature <= MAXIMUM_TEMPERATURE:  # NaN compares false
            raise invalid(f"temperature {temperature} is not in 0..{MAXIMUM_TEMPERATURE}")
        config.max_new_tokens, config.apply_chat_template = maximum, False
        config.eos_token_id, config.stop_token_ids = self._end_token, {self._end_token}
        config.ignore_eos = bool(scalar(request, "ignore_eos", False))
        if temperature > 0:
            config.do_sample, config.temperature, config.rng_seed = True, temperature, self._drill.seen
        return config

    def _queue(self, live: Live) -> None:
        with self._condition:
            if self._stopping:
                raise unavailable("the server is stopping")
            if self._pipeline is None:
                raise unavailable("the engine failed and could not be loaded again")
            if self._accepted >= self._limits.maximum_sequences + self._limits.maximum_queued_requests:
                raise unavailable(f"queue full: {self._accepted} requests are waiting or running")
            self._accepted += 1
            self._metrics.active(self._accepted)
            self._inbox.append(live)
            self._condition.notify()

    # The engine's thread

    def _load_engine(self) -> None:
        properties = json.loads((self._engine / "engine.json").read_text(encoding="utf-8"))["runtime_properties"]
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = self._limits.maximum_sequences
        scheduler.max_num_batched_tokens = self._limits.maximum_batched_tokens
        scheduler.num_kv_blocks = self._limits.kv_cache_blocks
        scheduler.dynamic_split_fuse, scheduler.enable_prefix_caching = True, False
        self._pipeline = genai.ContinuousBatchingPipeline(self._engine, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._end_token = self._tokenizer.get_eos_token_id()

    def _serve(self) -> None:
        while self._wait_for_work():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - whatever the engine throws must not end the thread
                pb_utils.Logger.log_error(f"llm: the engine failed: {error!r}; loading it again")
                self._end_all(failure(f"the engine failed: {error}"))
                self._reload()
        self._end_all(None)

    def _wait_for_work(self) -> bool:
        """Take new requests, waiting for them when there is nothing else to do; False when the model is unloaded."""
        with self._condition:
            if not self._live and not self._inbox and not self._stopping:
                self._condition.wait(IDLE_POLL_SECONDS)
            elif self._live and not any(live.handle for live in self._live):
                self._condition.wait(CANCELLATION_POLL_SECONDS / 4)  # all of them are held back by a drill
            self._live += self._inbox
            self._inbox.clear()
            return not self._stopping

    def _turn(self) -> None:
        now = time.monotonic()
        for live in list(self._live):
            if live.cancelled(now):
                self._end(live, "cancelled")
            elif live.handle is None and live.not_before <= now:
                self._numbers += 1
                live.handle = self._pipeline.add_request(self._numbers, live.prompt, live.generation)
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            self._deliver()

    def _deliver(self) -> None:
        """Send what this step generated; the texts of all requests are decoded in one call."""
        ready, generated = [], 0
        for live in [live for live in self._live if live.handle]:
            try:
                generated += (new := live.read())
            except RefusedError as refusal:
                self._refuse(live, refusal)
                continue
            if live.finish_reason or (new and (live.stream or live.text.stop_words)):
                ready.append(live)
        self._metrics.generated(generated)
        windows = [window for live in ready for window in live.text.windows()]
        texts = iter(self._tokenizer.decode(windows) if windows else ())
        for live in ready:
            live.text.advance(next(texts), next(texts), last=bool(live.finish_reason))
            if live.text.stopped:
                live.finish_reason = "stop"
            self._answer(live)

    def _answer(self, live: Live) -> None:
        done = bool(live.finish_reason)
        piece = live.text.take(last=done) if live.stream or done else ""
        if not done and not piece:
            return
        if done:
            self._forget(live, "completed")
        self._send(live, self._response(piece, live.unsent_tokens, live.finish_reason), last=done)
        live.unsent_tokens = 0

    def _send(self, live: Live, response: Any, *, last: bool = True) -> None:
        try:
            live.sender.send(response, flags=FINAL if last else 0)
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_warn(f"llm: a response could not be sent: {error}")

    def _response(self, text: str, tokens: int, finish_reason: str) -> Any:
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([text.encode()], dtype=object)),
                pb_utils.Tensor("output_tokens", np.array([tokens], np.int32)),
                pb_utils.Tensor("finish_reason", np.array([finish_reason.encode()], dtype=object)),
                pb_utils.Tensor("served_version", np.array([self._version], np.int32)),
            ]
        )

    def _refuse(self, live: Live, refusal: RefusedError) -> None:
        self._forget(live, refusal.outcome)
        self._send(live, error_response(refusal.code, str(refusal)))

    def _end(self, live: Live, outcome: str) -> None:
        """End a request whose client is gone, or whose server goes: its part of the batch and KV cache is freed."""
        self._forget(live, outcome)
        self._send(live, self._response("", live.unsent_tokens, "cancelled"))

    def _forget(self, live: Live, outcome: str) -> None:
        if live.handle is not None:
            live.handle.stop()
        self._live.remove(live)
        self._metrics.ended(outcome)
        with self._condition:
            self._accepted -= 1
            self._metrics.active(self._accepted)

    def _end_all(self, refusal: RefusedError | None) -> None:
        for live in list(self._live):
            if refusal is None:
                self._end(live, "cancelled")
            else:
                self._refuse(live, refusal)

    def _reload(self) -> None:
        self._pipeline = None  # the old engine's memory goes before the new one's comes
        try:
            self._load_engine()
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            pb_utils.Logger.log_error(f"llm: the engine does not load again: {error!r}")
