"""A double of Triton's backend `tensorrtllm`: the model `tensorrt_llm` without an engine.

What it enforces, from the recorded templates and upstream's python twin of the backend:
- the required inputs, and the shapes of those that the templates reshape to one value a request;
- that a stream is asked only of a decoupled model, one response a token, an empty last one that only says so;
- that a request to stop names the request id of the one that it ends.

What it cannot show: anything about GPUs, batching, speed or the tokens that a model really writes. Tokens are bytes
plus two (0 begins, 1 ends). It answers a prompt with its line of the JSON object in `ENGINE_DOUBLE_COMPLETIONS`, then
the end token; `ENGINE_DOUBLE_SECONDS_PER_TOKEN` slows it down. A prompt that begins with `fail` fails. The metric
`engine_double_stopped_total` counts the answers that were stopped.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SCALARS = (
    "input_lengths", "request_output_len", "end_id", "pad_id", "temperature", "runtime_top_k", "runtime_top_p", "seed",
    "streaming", "stop", "exclude_input_in_output",
)  # fmt: skip


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        engine = config["parameters"]["gpt_model_path"]["string_value"]
        if not (Path(engine) / "config.json").is_file():
            raise RuntimeError(f"Decoder (GPT) model path at {engine} does not exist.")
        self._decoupled = config["model_transaction_policy"]["decoupled"]
        self._answers = json.loads(Path(os.environ["ENGINE_DOUBLE_COMPLETIONS"]).read_text(encoding="utf-8"))
        self._seconds = float(os.environ.get("ENGINE_DOUBLE_SECONDS_PER_TOKEN", "0"))
        self._stopped: dict[str, threading.Event] = {}
        self._family = pb_utils.MetricFamily(
            name="engine_double_stopped_total",
            description="answers that ended by a request to stop",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self._stops = self._family.Metric(labels={})
        for one in (self._family, self._stops):  # collected as the process ends, they are a fault in its stub (2.51)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
        self._lock = threading.Lock()  # two threads in the metric calls of one stub end the server (2.51)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            sender, stopped = request.get_response_sender(), threading.Event()
            try:
                self._check(inputs)
                if inputs.get("stop", [False])[0]:
                    self._stop(request.request_id())
                    sender.send(flags=FINAL)
                    continue
            except (KeyError, ValueError) as error:
                sender.send(
                    pb_utils.InferenceResponse(
                        error=pb_utils.TritonError(repr(error), pb_utils.TritonError.INVALID_ARG)
                    ),
                    flags=FINAL,
                )
                continue
            self._stopped[request.request_id()] = stopped
            threading.Thread(target=self._answer, args=(inputs, sender, stopped), daemon=True).start()

    def _stop(self, request_id: str) -> None:
        if not request_id:
            raise ValueError("A request id must be provided for request cancellation")
        self._stopped[request_id].set()

    def _check(self, inputs: dict[str, Any]) -> None:
        for name in ("input_ids", "input_lengths", "request_output_len"):
            if name not in inputs:
                raise KeyError(name)
        for name in SCALARS:
            if name in inputs and inputs[name].shape != (1,):
                raise ValueError(f"{name} has shape {inputs[name].shape}")
        for name in ("stop_words_list", "bad_words_list"):
            if name in inputs and inputs[name].shape[:2] != (1, 2):
                raise ValueError(f"{name} has shape {inputs[name].shape}")
        if inputs.get("streaming", [False])[0] and not self._decoupled:
            raise ValueError("Streaming is only supported with model using decoupled transaction policy")

    def _answer(self, inputs: dict[str, Any], sender: Any, stopped: threading.Event) -> None:
        prompt = inputs["input_ids"][0, : inputs["input_lengths"][0]].tolist()
        text = bytes(token - 2 for token in prompt if token > 1).decode()
        if text.startswith("fail"):
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no more memory")), flags=FINAL)
            return
        tokens = self._tokens(text, inputs)
        if not inputs.get("exclude_input_in_output", [False])[0]:
            tokens = [*prompt, *tokens]
        if not inputs.get("streaming", [False])[0]:
            time.sleep(self._seconds * len(tokens))
            sender.send(_response(tokens))
        else:
            for token in tokens:
                time.sleep(self._seconds)
                if stopped.is_set():
                    with self._lock:
                        self._stops.increment(1)
                    break
                sender.send(_response([token]))
        sender.send(flags=FINAL)

    def _tokens(self, text: str, inputs: dict[str, Any]) -> list[int]:
        tokens = [byte + 2 for byte in self._answers.get(text, text).encode()]
        if "end_id" in inputs:
            tokens.append(int(inputs["end_id"][0]))
        else:
            tokens *= 1 + int(inputs["request_output_len"][0]) // len(tokens)
        return tokens[: inputs["request_output_len"][0]]


def _response(tokens: list[int]) -> Any:
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("output_ids", np.array([[tokens]], np.int32)),
            pb_utils.Tensor("sequence_length", np.array([[len(tokens)]], np.int32)),
        ]
    )
