"""The model `llm` without an engine, of known speed and with faults on demand: it sleeps for each decode step.

Copied into a model repository as `llm/1/model.py`, beside `llm_model_base.py` and `served_model.py`: tensors, refusals,
queue and metrics are those of every served model. A step gives each of at most `maximum_sequences` requests one word.

A request whose prompt is `#fault {"kind": "drop", "every": 200}` is an order, not a prompt: from now on the server has
that fault, with new counters. Kinds: empty (healthy); `slow` (steps take `factor` as long); every `every`th request:
`drop` (its stream ends without a last chunk), `stall` (silent for `seconds` half-way), `error` (an error half-way,
under HTTP 200), `truncate` (half the words, and it claims the whole length); `cache` (known requests are answered at
once).
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_pipeline.serving.models import llm_model_base as base
    from llm_pipeline.serving.models import served_model
else:
    import llm_model_base as base
    import served_model

STEP_SECONDS = 0.004
ORDER = "#fault "
WORDS = (" amber", " birch", " cedar", " dune", " ember", " fjord", " glade", " heron", " islet", " juniper", " kelp")
SHORTEST_ANSWER, LENGTHS = 4, 24


@dataclass
class Fault:
    """What is wrong with the server."""

    kind: str = ""
    every: int = 1
    factor: int = 1
    seconds: float = 0.0
    seen: int = 0

    def next_is_hit(self) -> bool:
        """Whether the next request is one of those that go wrong."""
        self.seen += 1
        return self.kind in {"drop", "stall", "error", "truncate"} and self.seen % self.every == 0


@dataclass(eq=False)
class Live:
    """One request from its acceptance to its last response."""

    reply: base.Reply
    words: list[str]
    input_tokens: int
    finish_reason: str
    hit: str = ""
    known: bool = False
    not_before: float = 0.0
    said: int = 0

    @property
    def halfway(self) -> bool:
        return self.said == (len(self.words) + 1) // 2


class TritonPythonModel(served_model.ServedModel):
    """The entry points that Triton calls, and the thread that takes the steps."""

    def initialize(self, args: dict[str, str]) -> None:
        self.set_up(args)
        self._metrics.show_kv_cache(args["model_instance_name"])
        self._condition = threading.Condition()
        self._inbox: deque[Live] = deque()
        self._live: list[Live] = []
        self._fault, self._known = Fault(), set[tuple[str | int, ...]]()
        self._stopping, self._said = False, 0
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._take(request, sender)
            except base.RefusedError as refusal:
                self._metrics.refused(refusal.outcome)
                base.refuse(sender, refusal)

    def finalize(self) -> None:
        with self._condition:
            self._stopping = True
            self._metrics.close()
            self._condition.notify()
        self._thread.join(base.SHUTDOWN_SECONDS)

    # Triton's thread

    def _take(self, request: Any, sender: Any) -> None:
        asked = base.Inputs.read(request, self._limits)
        if asked.prompt.startswith(ORDER):
            self._fault, self._known = Fault(**json.loads(asked.prompt.removeprefix(ORDER))), set()
            reply = self.reply_to(asked, sender, 1)
            reply.flush(reply.add("ok", 1, "stop"))
            return
        input_tokens = len(asked.prompt.split())
        asked = asked.with_room(input_tokens, self._limits)
        live = self._live_request(asked, sender, input_tokens)
        with self._condition:
            self._metrics.take(input_tokens)
            self._inbox.append(live)
            self._condition.notify()

    def _live_request(self, asked: base.Inputs, sender: Any, input_tokens: int) -> Live:
        seed = zlib.crc32(asked.prompt.encode())
        length = asked.maximum_tokens if asked.ignore_eos else min(
            asked.maximum_tokens, SHORTEST_ANSWER + seed % LENGTHS
        )  # fmt: skip
        key = (asked.prompt, *asked.stop_words, length)
        known = key in self._known
        self._known.add(key)
        return Live(
            reply=self.reply_to(asked, sender, input_tokens),
            words=[WORDS[(seed + place * (1 + seed % 3)) % len(WORDS)] for place in range(length)],
            input_tokens=input_tokens,
            finish_reason="length" if length == asked.maximum_tokens else "stop",
            hit=self._fault.kind if self._fault.next_is_hit() else "",
            known=known,
        )

    # The engine's thread

    def _serve(self) -> None:
        while self._wait_for_work():
            time.sleep(STEP_SECONDS * (self._fault.factor if self._fault.kind == "slow" else 1))
            self._step()
        for live in list(self._live):
            self._end(live)

    def _wait_for_work(self) -> bool:
        with self._condition:
            while not self._live and not self._inbox and not self._stopping:
                self._condition.wait()
            arrived = list(self._inbox)
            self._inbox.clear()
        self._live += arrived
        if self._fault.kind == "cache":
            for live in arrived:
                self._replay(live)
        return not self._stopping

    def _replay(self, live: Live) -> None:
        """Answer a known request from the cache, in one piece."""
        if live.known:
            self._forget(live, "completed")
            self._metrics.generated(len(live.words))
            live.reply.add("".join(live.words), len(live.words), live.finish_reason)
            live.reply.flush(live.finish_reason)

    def _step(self) -> None:
        now = time.monotonic()
        for live in list(self._live):
            if live.reply.client_left():
                self._end(live)
        running = self._live[: self._limits.maximum_sequences]
        held = sum(live.input_tokens + live.said for live in running)
        for live in running:
            if live.not_before <= now:
                self._advance(live, now)
        self._metrics.generated(self._said)
        self._said = 0
        room = self._limits.maximum_sequences * self._limits.maximum_tokens_per_request
        self._metrics.engine_load(min(1.0, held / room), last=not self._live)

    def _advance(self, live: Live, now: float) -> None:
        """Say one more word, or go wrong."""
        hit = live.hit if live.halfway else ""
        if hit == "drop":
            self._forget(live, "completed")
            live.reply.sender.send(flags=base.FINAL)
            return
        if hit == "error":
            self._forget(live, "failed")
            base.refuse(live.reply.sender, base.failure("CUDA error: an illegal memory access was encountered"))
            return
        if hit == "stall":
            live.hit, live.not_before = "", now + self._fault.seconds
            return
        word, last = live.words[live.said], hit == "truncate" or live.said == len(live.words) - 1
        live.said += 1
        self._said += 1
        reason = live.reply.add(word, 1, live.finish_reason if last else "")
        if reason:
            self._forget(live, "completed")
        live.reply.flush(reason)

    def _end(self, live: Live) -> None:
        self._forget(live, "cancelled")
        live.reply.cancel()

    def _forget(self, live: Live, outcome: str) -> None:
        self._live.remove(live)
        self._metrics.free(outcome)
