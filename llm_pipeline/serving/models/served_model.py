"""Set-up, metrics and admission of every served model `llm`, whichever engine is behind it.

This file is copied into a model repository beside `llm/1/model.py` and `llm_model_base.py`, and stands alone there:
standard library and triton_python_backend_utils.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from llm_pipeline.serving.models import llm_model_base as base
else:
    import llm_model_base as base

GAUGE_SECONDS = 0.1
OWN_SERVER_VARIABLE = "LLM_PIPELINE_OWN_SERVER"
"""Set by whoever started the server for this model alone: it may end with it."""
_WATCH = """
import os, select, signal, sys
server = os.pidfd_open(int(sys.argv[1]))
if not os.read(0, 1):
    signal.pidfd_send_signal(server, signal.SIGTERM)
    if not select.select([server], [], [], 10)[0]:
        signal.pidfd_send_signal(server, signal.SIGKILL)
"""


COUNTED = {
    "preemptions": "requests that lost their place",
    "drafts": "steps of requests with speculated tokens",
    "accepted": "speculated tokens that were right",
}
"""Counters of an engine, `llm_<name>_total`."""


class Metrics:
    """The model's own metrics, on Triton's metrics endpoint.

    One call at a time: two threads in the metric calls of one stub end the whole server (2.51) with a segmentation
    fault. Instances of one model share its metrics, so `llm_active_requests` is incremented and decremented, never
    set; each instance has its own KV cache, and its own gauge. No metric is ever garbage-collected: at the end of the
    process that crashes the stub (2.51), and earlier it removes the metric of the instances and versions that share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kv_cache: Any = None
        self._waiting: Any = None
        self._counters: dict[str, Any] = {}
        self._counted, self._reported_at = dict.fromkeys(COUNTED, 0), 0.0
        family = pb_utils.MetricFamily
        requests = family(name="llm_requests_total", description="requests by outcome", kind=family.COUNTER)
        tokens = family(name="llm_tokens_total", description="generated tokens", kind=family.COUNTER)
        prompts = family(name="llm_input_tokens_total", description="tokens of accepted prompts", kind=family.COUNTER)
        active = family(name="llm_active_requests", description="requests accepted, not ended", kind=family.GAUGE)
        outcomes = ("completed", "cancelled", "rejected", "invalid", "failed")
        self._outcomes = {outcome: requests.Metric(labels={"outcome": outcome}) for outcome in outcomes}
        self._tokens, self._prompts, self._active = (one.Metric(labels={}) for one in (tokens, prompts, active))
        base.keep(requests, tokens, prompts, active)
        base.keep(*self._outcomes.values(), self._tokens, self._prompts, self._active)

    def accepted(self, input_tokens: int) -> None:
        """Count a request that was accepted, with the tokens of its prompt."""
        with self._lock:
            self._active.increment(1)
            self._prompts.increment(input_tokens)

    def ended(self, outcome: str) -> None:
        """Count a request that was refused, by its outcome."""
        with self._lock:
            self._outcomes[outcome].increment(1)

    def freed(self, outcome: str) -> None:
        """Count an accepted request that ended, by its outcome."""
        with self._lock:
            self._outcomes[outcome].increment(1)
            self._active.increment(-1)

    def generated(self, tokens: int) -> None:
        """Count tokens that the engine generated; a call takes as long as a piece, so of none it is left out."""
        if tokens:
            with self._lock:
                self._tokens.increment(tokens)

    def show_kv_cache(self, instance: str) -> None:
        """Add the gauge `llm_kv_cache_usage` of this instance, for engines that report their usage."""
        family = pb_utils.MetricFamily
        usage = family(
            name="llm_kv_cache_usage", description="KV cache in use at the last step, 0 to 1", kind=family.GAUGE
        )
        self._kv_cache = usage.Metric(labels={"instance": instance})
        base.keep(usage, self._kv_cache)

    def show_engine(self, instance: str) -> None:
        """Add `llm_waiting_requests` and the counters of this instance, too."""
        self.show_kv_cache(instance)
        family = pb_utils.MetricFamily
        waiting = family(name="llm_waiting_requests", description="accepted, not in the batch", kind=family.GAUGE)
        self._waiting = waiting.Metric(labels={"instance": instance})
        base.keep(waiting, self._waiting)
        for name, words in COUNTED.items():
            counter = family(name=f"llm_{name}_total", description=words, kind=family.COUNTER)
            self._counters[name] = counter.Metric(labels={"instance": instance})
            base.keep(counter, self._counters[name])

    def engine_load(self, kv_cache_usage: float, *, last: bool, waiting: int = 0, **counted: int) -> None:
        """Report the engine's load after a step: at most every 0.1 s, and always before it idles.

        Args:
            kv_cache_usage: Share of the KV cache in use, 0 to 1.
            last: The engine idles from now on.
            waiting: Requests that wait.
            counted: `COUNTED`, since the engine's start.
        """
        now = time.monotonic()
        if not last and now - self._reported_at < GAUGE_SECONDS:
            return
        self._reported_at = now
        with self._lock:
            self._kv_cache.set(kv_cache_usage)
            if self._waiting:
                self._waiting.set(waiting)
            for name, count in counted.items():
                if count > self._counted[name]:
                    self._counters[name].increment(count - self._counted[name])
                self._counted[name] = count  # an engine that started again counts from zero


class Places:
    """Accepted requests that have not ended, limited to those that may wait or run at a time."""

    def __init__(self, limits: base.Limits, metrics: Metrics) -> None:
        self._most, self._metrics = limits.accepted, metrics
        self._lock = threading.Lock()
        self._taken, self._closed = 0, False

    def take(self, input_tokens: int) -> None:
        """Accept one more request; raises `RefusedError` when there is no place for it."""
        with self._lock:
            if self._closed:
                raise base.unavailable("the server is stopping")
            if self._taken >= self._most:
                raise base.unavailable(f"queue is full: {self._taken} requests are waiting or running")
            self._taken += 1
        self._metrics.accepted(input_tokens)

    def free(self, outcome: str) -> None:
        """Give back the place of an accepted request, which ended with this outcome."""
        with self._lock:
            self._taken -= 1
        self._metrics.freed(outcome)

    def close(self) -> None:
        """Refuse all further requests: the server is stopping."""
        with self._lock:
            self._closed = True


class ServerWatch:
    """A process that ends the server when this one dies before `close`.

    Triton (2.51) calls a model ready whose process has died: requests in flight were left without an answer for as
    long as their clients waited, and all later ones failed. A server that has ended is seen by everybody.
    """

    def __init__(self) -> None:
        command = [_python(), "-I", "-S", "-c", _WATCH, str(os.getppid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def close(self) -> None:
        """Let this process end without the server."""
        with contextlib.suppress(OSError):  # it has ended
            self._process.communicate(b".")


def _python() -> str:
    """This environment's interpreter; the program of Triton's stub is none."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return shutil.which("python3") or "python3"


class ServedModel:
    """Base of the classes `TritonPythonModel` that Triton calls."""

    def set_up(self, args: dict[str, str]) -> dict[str, str]:
        """Read the arguments of `initialize`; returns the parameters of `config.pbtxt`.

        A missing limit raises KeyError, which fails the load.
        """
        parameters = base.parameters(args)
        self._limits = base.Limits.from_parameters(parameters)
        self._drill = base.Drill.from_environment()
        self._metrics = Metrics()
        self._places = Places(self._limits, self._metrics)
        self._server_watch: ServerWatch | None = None
        self._has_answered = False
        return parameters

    def close(self) -> None:
        """Refuse all further requests, and let this process end without the server."""
        self._places.close()
        if self._server_watch:
            self._server_watch.close()
            self._server_watch = None

    def admit(self, requests: list[Any], accept: Callable[[Any, Any], Any], begin: Callable[[Any], object]) -> None:
        """Check requests and begin those that have a place; every answer goes through its response sender.

        Args:
            requests: As Triton gives them.
            accept: Reads one, with its response sender; raises `RefusedError`. Its result has a `prompt` of tokens.
            begin: Takes the result of `accept`.
        """
        if not self._has_answered:  # a model that does not load ends by itself
            self._has_answered = True
            self._watch_server()
        for request in requests:
            sender = request.get_response_sender()
            try:
                live = accept(request, sender)
                self._places.take(len(live.prompt))
            except base.RefusedError as refusal:
                self._metrics.ended(refusal.outcome)
                base.send(sender, base.error_answer(refusal))
            else:
                begin(live)

    def end(self, live: Any, refusal: base.RefusedError | None = None) -> None:
        """End a request with an error; or as cancelled, where its client has left or its server stops."""
        self.forget(live, refusal.outcome if refusal else "cancelled")
        if refusal:
            live.reply.refuse(refusal)
        else:
            live.reply.cancel()

    def forget(self, live: Any, outcome: str) -> None:  # noqa: ARG002 - models with more of a request free that, too
        """Free the place of a request that ends."""
        self._places.free(outcome)

    def _watch_server(self) -> None:
        if not os.environ.get(OWN_SERVER_VARIABLE):
            return
        try:
            self._server_watch = ServerWatch()
        except OSError as error:  # a server that serves matters more
            pb_utils.Logger.log_warn(f"llm: the server does not end with this process: {error}")

    def read(
        self, request: Any, encode: Callable[..., list[int]], decode: Callable[[list[int]], str], vocabulary: int
    ) -> tuple[base.Inputs, list[int]]:
        """A request's inputs, with the prompt's text where it is echoed, and the tokens of its prompt.

        Args:
            request: As Triton gives it.
            encode: From a text to tokens, with the model's own where `special`.
            decode: From tokens to a text.
            vocabulary: How many tokens there are.

        Raises:
            RefusedError: It asks for what cannot be.
        """
        self._drill.seen += 1
        asked = base.Inputs.read(request, self._limits)
        special = asked.add_special_tokens is not False
        prompt = list(asked.input_ids) or encode(asked.prompt, special=special)
        if not prompt:
            raise base.invalid("text_input has no tokens")
        if asked.input_ids and not (min(prompt) >= 0 and max(prompt) < vocabulary):
            raise base.invalid(f"input_ids: tokens are in 0..{vocabulary - 1}")
        if asked.echo and not asked.prompt:
            asked = replace(asked, prompt=decode(prompt))
        return asked.with_room(len(prompt), self._limits), prompt

    def reply_to(self, asked: base.Inputs, sender: Any, input_tokens: int) -> base.Reply:
        """The reply to an accepted request, still empty but for the prompt that is echoed."""
        echoed = asked.prompt if asked.echo else ""
        logprobs: list[dict[str, Any]] | None = None if asked.logprobs is None else []
        return base.Reply(sender, asked.stream, base.Text(asked.stop_words), input_tokens, echoed, logprobs)
