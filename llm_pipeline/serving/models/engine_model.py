"""The model `llm` of a TensorRT-LLM engine: tokenize, call the model `tensorrt_llm`, detokenize; one decoupled model.

This file is copied into a model repository as `llm/1/model.py`, beside `llm_model_base.py`, `served_model.py`,
`engine_tokenizer.py`, `engine_call.py` and `tokenizer/`. It runs in Triton's stub process and
therefore stands alone: standard library, numpy, tokenizers and triton_python_backend_utils.

Calls of another model block while it answers, so each request has a thread; `tensorrt_llm` batches them in flight.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from llm_pipeline.serving.models import engine_call, engine_tokenizer, served_model
    from llm_pipeline.serving.models import llm_model_base as base
else:
    import engine_call
    import engine_tokenizer
    import llm_model_base as base
    import served_model

ENGINE_MODEL = "tensorrt_llm"


class TritonPythonModel(served_model.ServedModel):
    """The entry points that Triton calls, and a thread for each request."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer; an exception here makes the model unavailable."""
        self.set_up(args)
        self._codec = engine_tokenizer.Codec(Path(__file__).with_name("tokenizer"))
        self._ends = engine_tokenizer.end_tokens(Path(__file__).with_name("engine"))
        self._port = engine_call.server_port()
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(self._limits.accepted, thread_name_prefix="request")
        pb_utils.Logger.log_info(f"llm: tokenizer loaded, end tokens {self._ends}, {self._about}")

    def execute(self, requests: list[Any]) -> None:
        """Check and queue requests; every answer goes through its response sender."""
        self.admit(requests, self._accept, lambda live: self._threads.submit(self._answer, live))

    def finalize(self) -> None:
        """End what is live as cancelled, at its next token."""
        self.close()
        self._stopping.set()
        self._threads.shutdown(wait=True)

    # Triton's thread

    def _accept(self, request: Any, sender: Any) -> base.Live:
        asked, prompt = self.read(request, self._codec.encode, self._codec.decode, self._codec.size())
        reply = self.reply_to(asked, sender, len(prompt))
        return base.Live(reply=reply, asked=asked, prompt=prompt, seed=self._seen)

    # The request's thread

    def _answer(self, live: base.Live) -> None:
        try:
            self._stopping.wait(self._delay_seconds)
            self._generate(live)
        except engine_call.CallError as error:
            unavailable = error.code == pb_utils.TritonError.UNAVAILABLE
            self.end(live, base.unavailable(str(error)) if unavailable else base.failure(str(error)))
        except Exception as error:  # noqa: BLE001 - whatever the called model throws ends this request and no other
            pb_utils.Logger.log_error(f"llm: a request failed: {error!r}")
            self.end(live, base.failure(f"the engine failed: {error}"))

    def _generate(self, live: base.Live) -> None:
        call = engine_call.EngineCall(self._port, ENGINE_MODEL, self._inputs(live))
        for outputs in call:
            if self._stopping.is_set() or live.reply.client_left():
                call.stop()
                self.end(live)
                return
            tokens = outputs["output_ids"][: outputs["sequence_length"][0]]
            reason = self._reason(live, tokens)
            if self._deliver(live, tokens, reason):
                call.drain() if reason else call.stop()
                return
        self._deliver(live, [], "stop")

    def _reason(self, live: base.Live, tokens: list[int]) -> str:
        """Why the answer ends with these tokens, which the engine does not report; empty if it goes on."""
        if not live.asked.ignore_eos and tokens and tokens[-1] in self._ends:
            return "stop"
        complete = len(live.window.tokens) + len(tokens) >= live.asked.maximum_tokens
        return "length" if complete else ""

    def _deliver(self, live: base.Live, tokens: list[int], finish_reason: str) -> bool:
        """Send what may be sent of new tokens; returns whether the answer is complete."""
        self._metrics.generated(len(tokens))
        live.window.tokens += tokens
        live.unread_tokens, live.finish_reason = len(tokens), finish_reason
        reason = live.advance(*(self._codec.decode(one) for one in live.window.windows()))
        if reason:
            self.forget(live, "completed")
        live.reply.flush(reason)
        return bool(reason)

    def _inputs(self, live: base.Live) -> dict[str, Any]:
        asked = live.asked
        inputs = {
            "input_ids": np.array([live.prompt], np.int32),
            "input_lengths": np.array([[len(live.prompt)]], np.int32),
            "request_output_len": np.array([[asked.maximum_tokens]], np.int32),
            "streaming": np.array([[True]], bool),
            "exclude_input_in_output": np.array([[True]], bool),
            "pad_id": np.array([[self._ends[0]]], np.int32),
        }
        if not asked.ignore_eos:
            inputs["end_id"] = np.array([[self._ends[0]]], np.int32)
            if others := [[token] for token in self._ends[1:]]:
                inputs["stop_words_list"] = engine_tokenizer.word_list(others)[None]
        chosen = asked.sampling
        for name in chosen.keys() & {"presence_penalty", "frequency_penalty", "repetition_penalty"}:
            inputs[name] = np.array([[chosen[name]]], np.float32)
        if asked.temperature > 0:
            inputs["temperature"] = np.array([[asked.temperature]], np.float32)
            # a temperature alone leaves decoding greedy
            inputs["runtime_top_p"] = np.array([[chosen.get("top_p", 1.0)]], np.float32)
            if "top_k" in chosen:
                inputs["runtime_top_k"] = np.array([[chosen["top_k"]]], np.int32)
            inputs["seed"] = np.array([[chosen.get("seed", live.seed) % 2**64]], np.uint64)
        return inputs
