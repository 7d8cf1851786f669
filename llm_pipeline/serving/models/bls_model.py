"""The model `tensorrt_llm_bls` of the classic set: calls preprocessing, the engine and postprocessing for a request.

This file is copied into a model repository as `tensorrt_llm_bls/1/model.py`, beside `engine_call.py` and
`llm_model_base.py`, and stands alone there. An instance serves a request at a time: there are as
many as may run side by side. New clients use the model `llm`, which does the same in one process and counts requests.

A stream carries new text, never half a character. The engine's tokens come over HTTP (why: `engine_call.py`);
everything else is called as Triton offers it: this process has no other thread.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from llm_pipeline.serving.models import engine_call
    from llm_pipeline.serving.models import llm_model_base as base
else:
    import engine_call
    import llm_model_base as base

TO_PREPROCESSING = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
FROM_PREPROCESSING = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "STOP_WORDS_IDS": "stop_words_list",
    "BAD_WORDS_IDS": "bad_words_list",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
TO_ENGINE = {"top_k": "runtime_top_k", "top_p": "runtime_top_p", "length_penalty": "len_penalty", "stream": "streaming"}
"""Inputs that have another name at the engine; the others are handed on as they are."""


class TritonPythonModel:
    """The entry points that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:  # noqa: ARG002 - Triton's
        """Find the server, whose HTTP endpoint is called."""
        self._port = engine_call.server_port()

    def execute(self, requests: list[Any]) -> None:
        """Answer each request through its sender."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._answer(request, sender)
            except base.RefusedError as refusal:
                base.refuse(sender, refusal)
            except engine_call.CallError as error:
                base.send(sender, pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), error.code)))
            else:
                sender.send(flags=base.FINAL)

    def _answer(self, request: Any, sender: Any) -> None:
        if unknown := sorted(json.loads(request.parameters() or "{}")):  # as which Triton takes what is no input
            raise base.invalid(f"this model takes text and how it is sampled, not {', '.join(unknown)}")
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        stream = bool(given.get("stream", np.zeros(1)).any())
        prepared = _ask(
            "preprocessing",
            {TO_PREPROCESSING[name]: value for name, value in given.items() if name in TO_PREPROCESSING},
            list(FROM_PREPROCESSING),
        )
        inputs = {FROM_PREPROCESSING[name]: value for name, value in prepared.items() if value.size}
        inputs |= {TO_ENGINE.get(name, name): value for name, value in given.items() if name not in TO_PREPROCESSING}
        call = engine_call.EngineCall(self._port, "tensorrt_llm", inputs)
        window = base.TokenWindow()
        for outputs in call:
            if sender.is_cancelled():
                call.stop()
                return
            window.tokens += outputs["output_ids"][: outputs["sequence_length"][0]]
            _send_new_text(sender, window, last=not stream)
        if window.read < len(window.tokens):  # the answer was cut inside a character
            _send_new_text(sender, window, last=True)


def _send_new_text(sender: Any, window: base.TokenWindow, *, last: bool) -> None:
    """The text of both windows comes from one call: as of two beams."""
    before, after = window.windows()
    rows = np.zeros((1, 2, max(len(after), 1)), np.int32)
    rows[0, 0, : len(before)], rows[0, 1, : len(after)] = before, after
    counts = np.array([[len(before), len(after)]], np.int32)
    texts = _ask("postprocessing", {"TOKENS_BATCH": rows, "SEQUENCE_LENGTH": counts}, ["OUTPUT"])["OUTPUT"].reshape(-1)
    piece = window.advance(texts[0].decode(), texts[1].decode(), last=last)
    output = pb_utils.Tensor("text_output", np.array([[piece.encode()]], dtype=object))
    base.send(sender, pb_utils.InferenceResponse([output]), last=False)


def _ask(model: str, inputs: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
    """Arrays of another model's response by output name; raises `CallError` for an error."""
    answer = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=outputs,
        inputs=[pb_utils.Tensor(name, value) for name, value in inputs.items()],
    ).exec()
    if answer.has_error():
        raise engine_call.CallError(model, answer.error().code(), answer.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
