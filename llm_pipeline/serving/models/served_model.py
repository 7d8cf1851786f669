"""Set-up, metrics and admission of every served model `llm`, whichever engine is behind it.

This file is copied into a model repository beside `llm/1/model.py` and `llm_model_base.py`, and stands alone there:
standard library and triton_python_backend_utils.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from llm_pipeline.serving.models import llm_model_base as base
else:
    import llm_model_base as base

GAUGE_SECONDS = 0.1
DRILL = "LLM_PIPELINE_DRILL"
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
    """Requests that have a place, as many as may wait or run at a time, and metrics on Triton's metrics endpoint.

    One call at a time: two threads in the metric calls of one stub end the whole server (2.51) with a segmentation
    fault. Instances of one model share its metrics, so `llm_active_requests` is incremented and decremented, never
    set; each instance has its own KV cache, and its own gauge. No metric is ever garbage-collected: at the end of the
    process that crashes the stub (2.51), and earlier it removes the metric of the instances and versions that share it.
    """

    def __init__(self, most: int) -> None:
        self._most, self._taken, self._closed = most, 0, False
        self._lock = threading.Lock()
        self._kv_cache: Any = None
        self._waiting: Any = None
        self._counters: dict[str, Any] = {}
        self._counted, self._reported_at = dict.fromkeys(COUNTED, 0), 0.0
        outcomes = [{"outcome": one} for one in ("completed", "cancelled", "rejected", "invalid", "failed")]
        made = _metrics("llm_requests_total", "requests by outcome", *outcomes)
        self._outcomes = {labels["outcome"]: metric for labels, metric in zip(outcomes, made, strict=True)}
        (self._tokens,) = _metrics("llm_tokens_total", "generated tokens", {})
        (self._prompts,) = _metrics("llm_input_tokens_total", "tokens of accepted prompts", {})
        (self._active,) = _metrics("llm_active_requests", "requests accepted, not ended", {}, gauge=True)

    def take(self, input_tokens: int) -> None:
        """Accept one more request, with so many tokens in its prompt; raises `RefusedError` without a place for it."""
        with self._lock:
            if self._closed:
                raise base.unavailable("the server is stopping")
            if self._taken >= self._most:
                raise base.unavailable(f"queue is full: {self._taken} requests are waiting or running")
            self._taken += 1
            self._active.increment(1)
            self._prompts.increment(input_tokens)

    def free(self, outcome: str) -> None:
        """Give back the place of an accepted request, which ended with this outcome."""
        with self._lock:
            self._taken -= 1
            self._outcomes[outcome].increment(1)
            self._active.increment(-1)

    def refused(self, outcome: str) -> None:
        """Count a request that was refused, by its outcome."""
        with self._lock:
            self._outcomes[outcome].increment(1)

    def close(self) -> None:
        """Refuse all further requests: the server is stopping."""
        self._closed = True

    def generated(self, tokens: int) -> None:
        """Count tokens that the engine generated; a call takes as long as a piece, so of none it is left out."""
        if tokens:
            with self._lock:
                self._tokens.increment(tokens)

    def show_kv_cache(self, instance: str) -> None:
        """Add the gauge `llm_kv_cache_usage` of this instance, for engines that report their usage."""
        (self._kv_cache,) = _metrics(
            "llm_kv_cache_usage", "KV cache in use at the last step, 0 to 1", {"instance": instance}, gauge=True
        )

    def show_engine(self, instance: str) -> None:
        """Add `llm_waiting_requests` and the counters of this instance, too."""
        self.show_kv_cache(instance)
        labels = {"instance": instance}
        (self._waiting,) = _metrics("llm_waiting_requests", "accepted, not in the batch", labels, gauge=True)
        for name, words in COUNTED.items():
            (self._counters[name],) = _metrics(f"llm_{name}_total", words, labels)

    def engine_load(self, cache_usage: float, *, last: bool, waiting: int = 0, **counted: int) -> None:
        """Report the engine's load after a step: at most every 0.1 s, and always before it idles.

        Args:
            cache_usage: Share of the KV cache in use, 0 to 1.
            last: The engine idles from now on.
            waiting: Requests that wait.
            counted: `COUNTED`, since the engine's start.
        """
        now = time.monotonic()
        if not last and now - self._reported_at < GAUGE_SECONDS:
            return
        self._reported_at = now
        with self._lock:
            self._kv_cache.set(cache_usage)
            if self._waiting:
                self._waiting.set(waiting)
            for name, count in counted.items():
                if count > self._counted[name]:
                    self._counters[name].increment(count - self._counted[name])
                self._counted[name] = count  # an engine that started again counts from zero


def _metrics(name: str, description: str, *labels: dict[str, str], gauge: bool = False) -> list[Any]:
    """The metrics of a family, one for each set of labels: counters, or gauges."""
    family = pb_utils.MetricFamily
    family = family(name=name, description=description, kind=family.GAUGE if gauge else family.COUNTER)
    made = [family.Metric(labels=one) for one in labels]
    base.keep(family, *made)
    return made


class ServedModel:
    """Base of the classes `TritonPythonModel` that Triton calls."""

    def set_up(self, args: dict[str, str]) -> None:
        """Read the arguments of `initialize`, and the drill of this process: `{"delay_milliseconds": 400}`.

        A missing limit raises KeyError, which fails the load.
        """
        parameters, drill = json.loads(args["model_config"])["parameters"], json.loads(os.environ.get(DRILL) or "{}")
        limits = {name: int(parameters[name]["string_value"]) for name in base.Limits.__dataclass_fields__}
        self._limits = base.Limits(**limits)
        self._delay_seconds, self._seen = drill.get("delay_milliseconds", 0) / 1e3, 0
        self._about = f"{self._limits}{f', DRILL {drill}' if drill else ''}"
        self._metrics = Metrics(self._limits.accepted)
        self._server_watch: subprocess.Popen[bytes] | None = None
        self._has_answered = False

    def close(self) -> None:
        """Refuse all further requests, and let this process end without the server."""
        self._metrics.close()
        if self._server_watch:
            with contextlib.suppress(OSError, ValueError):  # it has ended, or was told
                self._server_watch.communicate(b".")

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
                self._metrics.take(len(live.prompt))
            except base.RefusedError as refusal:
                self._metrics.refused(refusal.outcome)
                base.refuse(sender, refusal)
            else:
                begin(live)

    def end(self, live: Any, refusal: base.RefusedError | None = None) -> None:
        """End a request with an error; or as cancelled, where its client has left or its server stops."""
        self.forget(live, refusal.outcome if refusal else "cancelled")
        if refusal:
            base.refuse(live.reply.sender, refusal)
        else:
            live.reply.cancel()

    def forget(self, live: Any, outcome: str) -> None:  # noqa: ARG002 - models with more of a request free that, too
        """Free the place of a request that ends."""
        self._metrics.free(outcome)

    def _watch_server(self) -> None:
        """Have a process end the server when this one dies before `close`.

        Triton (2.51) calls a model ready whose process has died: requests in flight were left without an answer for as
        long as their clients waited, and all later ones failed. A server that has ended is seen by everybody.
        """
        if not os.environ.get(OWN_SERVER_VARIABLE):
            return
        command = ["python3", "-I", "-S", "-c", _WATCH, str(os.getppid())]
        try:
            self._server_watch = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
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
        self._seen += 1
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
