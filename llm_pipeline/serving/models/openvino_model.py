"""The model `llm` of an OpenVINO engine: tokenize, generate in flight, detokenize, in one decoupled model.

This file is copied into a model repository as `llm/1/model.py`, beside `engine/`, `llm_model_base.py` and
`served_model.py`. It runs in Triton's stub process and therefore stands alone: standard library, openvino_genai and
triton_python_backend_utils.

One model rather than an ensemble, because cancellation does not pass through an ensemble. One thread owns the engine:
it admits requests, steps the batch and sends what was generated; Triton's thread only checks and queues.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openvino_genai as genai
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from llm_pipeline.serving.models import llm_model_base as base
    from llm_pipeline.serving.models import served_model
else:
    import llm_model_base as base
    import served_model

IDLE_POLL_SECONDS = 0.5


@dataclass
class Live:
    """One request from its acceptance to its last response."""

    reply: base.Reply
    ids: Any
    generation: Any
    not_before: float
    window: base.TokenWindow = field(default_factory=base.TokenWindow)
    handle: Any = None
    finish_reason: str = ""
    unread_tokens: int = 0

    @property
    def prompt(self) -> Any:
        """The tokens of the prompt."""
        return self.ids.data[0]

    @property
    def shown_early(self) -> bool:
        """Whether its text is needed before it is complete."""
        return self.reply.stream or bool(self.reply.text.stop_words)

    def read(self) -> int:
        """Collect what the engine generated, and whether the request ended; returns the number of new tokens."""
        new: list[int] = []
        while self.handle.can_read():
            for output in self.handle.read().values():
                new += output.generated_ids
                if output.finish_reason != genai.GenerationFinishReason.NONE:
                    self.finish_reason = output.finish_reason.name.lower()
        self.window.tokens += new
        self.unread_tokens += len(new)
        status = self.handle.get_status()
        if status == genai.GenerationStatus.IGNORED:
            raise base.unavailable("the request does not fit into the KV cache")
        if status != genai.GenerationStatus.RUNNING and not self.finish_reason:
            self.finish_reason = "cancelled"
        return len(new)

    def advance(self, before: str, after: str) -> str:
        """Take the decoded windows; returns why the answer is complete, empty while it is not."""
        piece = self.window.advance(before, after, last=bool(self.finish_reason))
        tokens, self.unread_tokens = self.unread_tokens, 0
        return self.reply.add(piece, tokens, self.finish_reason)


class TritonPythonModel(served_model.ServedModel):
    """The entry points that Triton calls, and the thread that owns the engine."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine and start its thread; an exception here makes the model unavailable."""
        self.set_up(args)
        self._engine = Path(args["model_repository"]) / args["model_version"] / "engine"
        self._metrics.show_kv_cache(args["model_instance_name"])
        self._condition = threading.Condition()
        self._inbox: deque[Live] = deque()
        self._live: list[Live] = []
        self._numbers, self._stopping = 0, False
        self._pipeline: Any = None
        started = time.monotonic()
        self._load_engine()
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()
        seconds = time.monotonic() - started
        pb_utils.Logger.log_info(f"llm: engine loaded in {seconds:.2f} s, {self._limits}{self._drill}")

    def execute(self, requests: list[Any]) -> None:
        """Check and queue requests; every answer goes through its response sender."""
        self.admit(requests, self._accept, self._queue)

    def finalize(self) -> None:
        """Stop the thread; requests that are still live end as cancelled."""
        with self._condition:
            self._stopping = True
            self.close()
            self._condition.notify()
        self._thread.join(base.SHUTDOWN_SECONDS)
        self._pipeline = None

    # Triton's thread

    def _accept(self, request: Any, sender: Any) -> Live:
        self._drill.fail_if_due()
        asked = base.Inputs.read(request, self._limits)
        if self._pipeline is None and not self._stopping:
            raise base.unavailable("the engine failed and could not be loaded again")
        ids = self._tokenizer.encode(asked.prompt).input_ids
        asked = asked.with_room(ids.shape[1], self._limits)
        return Live(
            reply=self.reply_to(asked, sender, ids.shape[1]),
            ids=ids,
            generation=self._generation(asked),
            not_before=time.monotonic() + self._drill.delay_seconds,
        )

    def _generation(self, asked: base.Inputs) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = asked.maximum_tokens, False
        config.stop_token_ids, config.ignore_eos = self._end_tokens, asked.ignore_eos
        if asked.temperature > 0:
            config.do_sample, config.temperature, config.rng_seed = True, asked.temperature, self._drill.seen
        return config

    def _queue(self, live: Live) -> None:
        with self._condition:
            self._inbox.append(live)
            self._condition.notify()

    # The engine's thread

    def _load_engine(self) -> None:
        description = json.loads((self._engine / "engine.json").read_text(encoding="utf-8"))
        properties, self._end_tokens = description["runtime_properties"], set(description["rules"]["end_tokens"])
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = self._limits.maximum_sequences
        scheduler.max_num_batched_tokens = self._limits.maximum_batched_tokens
        scheduler.num_kv_blocks = self._limits.kv_cache_blocks
        scheduler.dynamic_split_fuse, scheduler.enable_prefix_caching = True, False
        self._pipeline = genai.ContinuousBatchingPipeline(self._engine, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()

    def _serve(self) -> None:
        while self._wait_for_work():
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - whatever the engine throws must not end the thread
                pb_utils.Logger.log_error(f"llm: the engine failed: {error!r}; loading it again")
                self._end_all(base.failure(f"the engine failed: {error}"))
                self._reload()
        self._end_all(None)

    def _wait_for_work(self) -> bool:
        """Take new requests, waiting for them when there is nothing else to do; False when the model is unloaded."""
        with self._condition:
            if not self._live and not self._inbox and not self._stopping:
                self._condition.wait(IDLE_POLL_SECONDS)
            elif self._live and not any(live.handle for live in self._live):
                self._condition.wait(base.CANCELLATION_POLL_SECONDS / 4)  # all of them are held back by a drill
            self._live += self._inbox
            self._inbox.clear()
            return not self._stopping

    def _step(self) -> None:
        now = time.monotonic()
        for live in list(self._live):
            if live.reply.client_left():
                self._end(live, "cancelled")
            elif live.handle is None and live.not_before <= now:
                self._numbers += 1
                live.handle = self._pipeline.add_request(self._numbers, live.ids, live.generation)
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            self._deliver()
            usage = self._pipeline.get_metrics().cache_usage / 100.0  # a percentage of the step, before it frees
            self._metrics.kv_cache_usage(usage, last=not self._live)

    def _deliver(self) -> None:
        """Send what this step generated; the texts of all requests are decoded in one call."""
        ready, generated = [], 0
        for live in [live for live in self._live if live.handle]:
            try:
                generated += (new := live.read())
            except base.RefusedError as refusal:
                self._refuse(live, refusal)
                continue
            if live.finish_reason or (new and live.shown_early):
                ready.append(live)
        self._metrics.generated(generated)
        windows = [window for live in ready for window in live.window.windows()]
        texts = iter(self._tokenizer.decode(windows) if windows else ())
        for live in ready:
            reason = live.advance(next(texts), next(texts))
            if reason:
                self._forget(live, "completed")
            live.reply.flush(reason)

    def _refuse(self, live: Live, refusal: base.RefusedError) -> None:
        self._forget(live, refusal.outcome)
        live.reply.refuse(refusal)

    def _end(self, live: Live, outcome: str) -> None:
        """End a request whose client has left, or whose server stops: its part of the batch and KV cache is freed."""
        self._forget(live, outcome)
        live.reply.cancel()

    def _forget(self, live: Live, outcome: str) -> None:
        if live.handle is not None:
            live.handle.stop()
        self._live.remove(live)
        self._places.free(outcome)

    def _end_all(self, refusal: base.RefusedError | None) -> None:
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
