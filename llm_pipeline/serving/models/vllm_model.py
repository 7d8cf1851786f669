"""The model `llm` of vLLM: tokenize, generate in flight, detokenize, in one decoupled model.

This file is copied into a model repository as `llm/1/model.py`, beside `vllm_batcher.py`, `vllm_process.py`,
`llm_model_base.py`, `served_model.py` and a link to the checkpoint. It runs in Triton's stub process and therefore
stands alone: standard library, what the batcher needs, and triton_python_backend_utils.

Two threads work beside Triton's: the batcher's own, and this one, which turns tokens into text and sends it. Triton's
thread checks requests and starts them at once: vLLM queues by itself.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from llm_pipeline.serving.models import llm_model_base as base
    from llm_pipeline.serving.models import served_model, vllm_batcher
else:
    import llm_model_base as base
    import served_model
    import vllm_batcher

IDLE_POLL_SECONDS = 0.5
CANCELLATION_SECONDS = 0.1
"""How often clients that are gone are looked for."""

ANSWERS_AT_ONCE = 4
"""A piece takes Triton some 0.1 to 0.2 ms: a first token never waits for more of other requests' pieces than these."""
GENERIC_TOKENIZERS = {f"transformers.tokenization_utils_{name}" for name in ("base", "fast", "tokenizers")}
"""Modules of the classes whose `decode` is the tokenizers library's, in Transformers 4 and 5."""


@dataclass(eq=False, kw_only=True)
class Live(base.Live):
    """One request from its acceptance to its last response."""

    name: str
    error: str = ""
    is_refused: bool = False
    has_sent: bool = False
    has_ended: bool = False
    is_due: bool = False

    def take(self, output: vllm_batcher.Output) -> None:
        """Add generated tokens, whose text is decoded later."""
        self.window.tokens += output.tokens
        self.unread_tokens += len(output.tokens)
        self.finish_reason, self.error, self.is_refused = output.finish_reason, output.error, output.is_refused


def decoder_of(tokenizer: Any) -> Callable[[list[int]], str]:
    """What turns tokens into text: the library below Transformers where that adds nothing of its own.

    Its checks of what kind of tensor a list may be take more than three quarters of a short text's time.
    """
    methods = (getattr(type(tokenizer), name) for name in ("batch_decode", "decode", "_decode"))
    if hasattr(tokenizer, "backend_tokenizer") and all(method.__module__ in GENERIC_TOKENIZERS for method in methods):
        return partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=True)
    return partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class TritonPythonModel(served_model.ServedModel):
    """The entry points that Triton calls, and the thread that answers."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the checkpoint and start the threads; an exception here makes the model unavailable."""
        self.set_up(args)
        self._metrics.show_engine(args["model_instance_name"])
        self._inbox: queue.SimpleQueue[Live] = queue.SimpleQueue()
        self._waiting: list[Live] = []
        self._running: dict[str, Live] = {}
        self._first: deque[Live] = deque()  # have something to send, and have sent nothing yet
        self._later: deque[Live] = deque()  # have something to send
        self._unchecked: deque[Live] = deque()  # whose clients may be gone
        self._engine = threading.Lock()  # held while the engine is started again
        self._asked, self._looked_at, self._stopping, self._broken = 0, 0.0, False, False
        started = time.monotonic()
        self._load(Path(args["model_repository"]) / args["model_version"])
        self._thread = threading.Thread(target=self._serve, name="answers", daemon=True)
        self._thread.start()
        seconds = time.monotonic() - started
        pb_utils.Logger.log_info(f"llm: engine loaded in {seconds:.2f} s, {self._about}")

    def execute(self, requests: list[Any]) -> None:
        """Check and queue requests; every answer goes through its response sender."""
        self.admit(requests, self._accept, self._begin)

    def finalize(self) -> None:
        """Stop the threads; requests that are still live end as cancelled."""
        self._stopping = True
        self.close()
        self._batcher.wake()
        self._thread.join(base.SHUTDOWN_SECONDS)
        self._batcher.stop()

    # Triton's thread

    def _begin(self, live: Live) -> None:
        """Start a request, unless it has to wait: for a drill, or for the engine's next start."""
        if live.not_before <= time.monotonic() and self._engine.acquire(blocking=False):
            try:
                self._submit(live)
            finally:
                self._engine.release()
        else:
            self._inbox.put(live)
            self._batcher.wake()

    def _submit(self, live: Live) -> None:
        self._running[live.name] = live
        self._batcher.submit(
            live.name,
            live.prompt,
            live.asked.maximum_tokens,
            ignore_eos=live.asked.ignore_eos,
            sampling=live.asked.sampling,
            logprobs=live.asked.logprobs,
            echo=live.asked.echo,
            json_schema=live.asked.json_schema,
        )

    def _load(self, version: Path) -> None:
        engine = version / "engine"
        description = json.loads((engine / "engine.json").read_text(encoding="utf-8"))
        properties, ends = description["runtime_properties"], description["rules"]["end_tokens"]
        settings = vllm_batcher.Settings.of(properties, asdict(self._limits), engine, end_tokens=ends)
        self._batcher = vllm_batcher.Batcher(version / "checkpoint", settings)
        self._tokenizer = self._batcher.tokenizer
        self._decode = decoder_of(self._tokenizer)
        self._byte_level = base.is_byte_level(getattr(self._tokenizer, "backend_tokenizer", None))

    def _accept(self, request: Any, sender: Any) -> Live:
        asked, prompt = self.read(request, self._encode, self._decode, len(self._tokenizer))
        if self._broken:
            raise base.unavailable("the engine failed and could not be started again")
        if not self._batcher.fits(len(prompt) + asked.maximum_tokens):
            raise base.unavailable("the request does not fit into the KV cache")
        self._asked += 1
        return Live(
            name=str(self._asked),
            reply=self.reply_to(asked, sender, len(prompt)),
            asked=asked,
            prompt=prompt,
            not_before=time.monotonic() + self._delay_seconds,
        )

    def _encode(self, text: str, *, special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def _token_bytes(self, token: int) -> bytes:
        return base.token_bytes(self._tokenizer.convert_ids_to_tokens(token), byte_level=self._byte_level)

    # The answering thread

    def _serve(self) -> None:
        while not self._stopping:
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - whatever the engine throws must not end the thread
                self._start_again(f"{error!r}")
        self._end_all(None)

    def _step(self) -> None:
        self._admit()
        outputs = self._batcher.outputs(self._seconds_to_wait())
        self._metrics.generated(sum(len(output.tokens) for output in outputs))
        for output in outputs:
            self._take(output)
        self._deliver()
        self._cancel_abandoned()
        load = {**self._batcher.load, "waiting": len(self._waiting) + self._batcher.load["waiting"]}
        self._metrics.engine_load(**load if self._running else load | {"cache_usage": 0.0}, last=not self._running)
        if not self._batcher.is_running and not self._stopping:
            self._start_again("its thread ended")

    def _seconds_to_wait(self) -> float:
        """How long to wait for tokens before there is something else to do."""
        if self._first or self._later or self._unchecked:
            return 0.0
        if not self._running and not self._waiting:
            return IDLE_POLL_SECONDS
        return base.CANCELLATION_POLL_SECONDS

    def _admit(self) -> None:
        """Start what is due, in the order of arrival."""
        while not self._inbox.empty():
            self._waiting.append(self._inbox.get())
        now = time.monotonic()
        for live in [live for live in self._waiting if live.not_before <= now]:
            self._waiting.remove(live)
            self._submit(live)

    def _take(self, output: vllm_batcher.Output) -> None:
        """Take what was generated; what is to be sent waits in a queue, first tokens before all others."""
        live = self._running[output.name]
        live.take(output)
        spelt = self._token_bytes
        live.reply.tell(
            base.likelihood(spelt(token), logprob, [(spelt(one), number) for one, number in top])
            for token, logprob, top in output.scores
        )
        if not live.is_due and (live.finish_reason or live.error or live.shown_early):
            live.is_due = True
            (self._later if live.has_sent else self._first).append(live)

    def _deliver(self) -> None:
        """Send some of what waits."""
        for _ in range(ANSWERS_AT_ONCE):
            if not (waiting := self._first or self._later):
                return
            live = waiting.popleft()
            live.is_due = False
            if live.error:
                refused = (
                    base.invalid(live.error) if live.is_refused else base.failure(f"the engine failed: {live.error}")
                )
                self.end(live, refused)
                continue
            before, after = map(self._decode, live.window.windows())
            reason, live.has_sent = live.advance(before, after), True
            if reason:
                self.forget(live, "completed")
            live.reply.flush(reason)

    def _cancel_abandoned(self) -> None:
        """End requests whose clients are gone: their part of the batch and KV cache is freed.

        One at a time: a check takes as long as a piece, and a first token must not wait for those of all requests.
        """
        now = time.monotonic()
        if not self._unchecked and now - self._looked_at >= CANCELLATION_SECONDS:
            self._looked_at = now
            self._unchecked.extend([*self._running.values(), *self._waiting])
        if self._unchecked:
            live = self._unchecked.popleft()
            if not live.has_ended and live.reply.client_left():
                self.end(live)

    def forget(self, live: Live, outcome: str) -> None:
        """Free all that it holds, its part of the batch and of the KV cache too."""
        live.has_ended = True
        self._batcher.cancel(live.name)
        if self._running.pop(live.name, None) is None:
            self._waiting.remove(live)
        if live.is_due:
            (self._later if live.has_sent else self._first).remove(live)
            live.is_due = False
        super().forget(live, outcome)

    def _end_all(self, refusal: base.RefusedError | None) -> None:
        while not self._inbox.empty():
            self._waiting.append(self._inbox.get())
        for live in [*self._running.values(), *self._waiting]:
            self.end(live, refusal)

    def _start_again(self, reason: str) -> None:
        pb_utils.Logger.log_error(f"llm: the engine failed: {reason}; starting it again")
        with self._engine:
            self._end_all(base.failure(f"the engine failed: {reason}"))
            try:
                self._batcher.start()
            except (RuntimeError, MemoryError) as error:
                self._broken, self._stopping = True, True
                self._metrics.close()
                pb_utils.Logger.log_error(f"llm: the engine cannot be restarted: {error!r}")
