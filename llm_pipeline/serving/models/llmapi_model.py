"""The model `llm` of TensorRT-LLM's LLM API: it batches in flight by itself, so one decoupled model is enough.

This file is copied into a model repository as `llm/1/model.py`, beside `model.yaml`, `llm_model_base.py`,
`served_model.py` and a link to the checkpoint. It runs in Triton's stub process and therefore stands alone: standard
library, yaml, tensorrt_llm and triton_python_backend_utils.

One thread runs an event loop with a task for each request; Triton's thread only checks and queues. Stop words are
looked for in the text, as every engine of this package does it, and not by the sampler, which compares tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils
import yaml

if TYPE_CHECKING:
    from llm_pipeline.serving.models import llm_model_base as base
    from llm_pipeline.serving.models import served_model
else:
    import llm_model_base as base
    import served_model

CANCELLATION_SECONDS = 0.1
"""How often clients that are gone are looked for."""


@dataclass(eq=False, kw_only=True)
class Live(base.Live):
    """One request from its acceptance to its last response."""

    task: asyncio.Task[None] | None = None
    result: Any = None


class TritonPythonModel(served_model.ServedModel):
    """The entry points that Triton calls, and the event loop beside them."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the checkpoint and start the event loop; an exception here makes the model unavailable."""
        self.set_up(args)
        self._live: set[Live] = set()
        started = time.monotonic()
        self._load(Path(args["model_repository"]) / args["model_version"])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)
        self._thread.start()
        self._watcher = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)
        seconds = time.monotonic() - started
        pb_utils.Logger.log_info(f"llm: engine loaded in {seconds:.2f} s, {self._about}")

    def execute(self, requests: list[Any]) -> None:
        """Check and queue requests; every answer goes through its response sender."""
        self.admit(requests, self._accept, lambda live: self._loop.call_soon_threadsafe(self._start, live))

    def finalize(self) -> None:
        """End what is live as cancelled, then the loop and the engine."""
        self.close()
        ended = asyncio.run_coroutine_threadsafe(self._end_all(), self._loop)
        with contextlib.suppress(TimeoutError):  # an engine that hangs is shut down all the same
            ended.result(base.SHUTDOWN_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(base.SHUTDOWN_SECONDS)
        self._llm.shutdown()

    # Triton's thread

    def _load(self, version: Path) -> None:
        from tensorrt_llm import LLM, SamplingParams

        self._sampling_params = SamplingParams
        description = json.loads((version / "engine" / "engine.json").read_text(encoding="utf-8"))
        self._end_tokens: list[int] = description["rules"]["end_tokens"]
        arguments = yaml.safe_load((version / "model.yaml").read_text(encoding="utf-8"))
        checkpoint = version / arguments["model"]
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        self._vocabulary = int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size", 0))
        self._llm = LLM(**{**arguments, "model": str(checkpoint)})

    def _accept(self, request: Any, sender: Any) -> Live:
        asked, prompt = self.read(request, self._encode, self._llm.tokenizer.decode, self._vocabulary)
        reply = self.reply_to(asked, sender, len(prompt))
        return Live(reply=reply, asked=asked, prompt=prompt, seed=self._seen)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        return list(self._llm.tokenizer.encode(text, add_special_tokens=special))

    # The event loop's thread

    def _start(self, live: Live) -> None:
        self._live.add(live)
        live.task = self._loop.create_task(self._generate(live))
        live.task.add_done_callback(lambda task: self._ended(live, task))

    def _ended(self, live: Live, task: asyncio.Task[None]) -> None:
        """Answer a request that was cancelled or failed."""
        if task.cancelled():
            self.end(live)
        elif error := task.exception():
            pb_utils.Logger.log_error(f"llm: a request failed: {error!r}")
            self.end(live, base.failure(f"the engine failed: {error}"))

    async def _generate(self, live: Live) -> None:
        await asyncio.sleep(self._delay_seconds)
        live.result = self._llm.generate_async(live.prompt, self._sampling(live), streaming=True)
        characters = tokens = 0
        async for output in live.result:
            whole = output.outputs[0]  # one object that grows
            shown = whole.text if whole.finish_reason else whole.text.rstrip(base.INCOMPLETE)
            piece, new = shown[characters:], len(whole.token_ids) - tokens
            characters, tokens = max(characters, len(shown)), len(whole.token_ids)
            self._metrics.generated(new)
            if whole.finish_reason not in (None, "stop", "length"):
                raise RuntimeError(f"TensorRT-LLM ended it: {whole.finish_reason}")  # a time limit, a cancellation
            if reason := live.reply.add(piece, new, whole.finish_reason or ""):
                self.forget(live, "completed")
                live.reply.flush(reason)
                return
            live.reply.flush("")
        raise RuntimeError("the answer ended without a reason")

    def _sampling(self, live: Live) -> Any:
        asked = live.asked
        if asked.temperature > 0:  # older versions take a temperature alone for greedy decoding
            sampled = {"top_p": 1.0, "seed": live.seed, **asked.sampling}
            sampled["seed"] %= 2**64
        else:  # all versions sample where any other of these is named
            sampled = {name: value for name, value in asked.sampling.items() if name.endswith("_penalty")}
        return self._sampling_params(
            max_tokens=asked.maximum_tokens,
            ignore_eos=asked.ignore_eos,
            stop_token_ids=None if asked.ignore_eos else self._end_tokens,
            skip_special_tokens=True,
            **sampled,
        )

    def forget(self, live: Live, outcome: str) -> None:
        """Free all that it holds, its part of the batch and of the KV cache too."""
        if live.result is not None and not live.result.finished:
            live.result.abort()
        self._live.discard(live)
        super().forget(live, outcome)

    async def _watch(self) -> None:
        """End requests whose clients are gone: their part of the batch and KV cache is freed."""
        while True:
            await asyncio.sleep(CANCELLATION_SECONDS)
            for live in list(self._live):
                if live.task and live.reply.sender.is_cancelled():
                    live.task.cancel()

    async def _end_all(self) -> None:
        self._watcher.cancel()
        tasks = [live.task for live in self._live if live.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
