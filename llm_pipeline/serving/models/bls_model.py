"""The model `tensorrt_llm_bls` of the classic set: calls preprocessing, the engine and postprocessing for a request.

This file is copied into a model repository as `tensorrt_llm_bls/1/model.py`, beside `engine_call.py` and
`llm_model_base.py`, and stands alone there. An instance serves a request at a time: there are as
many as may run side by side. New clients use the model `llm`, which does the same in one process and counts requests.

A stream carries new text, never half a character. Its tokens come over
HTTP (why: `engine_call.py`), and so without the logits, which JSON has no FP16 for; everything else is called as Triton
offers it: this process has no other thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    "decoder_text_input": "DECODER_QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
FROM_PREPROCESSING = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "STOP_WORDS_IDS": "stop_words_list",
    "BAD_WORDS_IDS": "bad_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
TO_ENGINE = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    **{
        name: name
        for name in (
            "beam_width", "exclude_input_in_output", "frequency_penalty", "guided_decoding_guide",
            "guided_decoding_guide_type", "lora_config", "lora_task_id", "lora_weights", "min_tokens",
            "num_return_sequences", "presence_penalty", "prompt_embedding_table", "prompt_vocab_size",
            "repetition_penalty", "return_context_logits", "return_generation_logits", "return_log_probs",
            "return_num_input_tokens", "return_num_output_tokens", "return_perf_metrics", "seed", "temperature",
        )
    },
}  # fmt: skip
UNSERVED = (
    "image_input", "image_bytes_input", "image_url_input", "image_sizes_input", "video_bytes_input",
    "prompt_table_extra_id", "num_draft_tokens", "use_draft_logits",
)  # fmt: skip
UNSTREAMED = ("return_context_logits", "return_generation_logits")


class TritonPythonModel:
    """The entry points that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read transaction policy, parameters and output types from the model's configuration."""
        config, parameters = json.loads(args["model_config"]), base.parameters(args)
        self._decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self._engine = parameters["tensorrt_llm_model_name"]
        self._types = {
            output["name"]: pb_utils.triton_string_to_numpy(output["data_type"])
            for output in config["output"]
            if output["name"] != "text_output"
        }
        self._ranks = {output["name"]: len(output["dims"]) + 1 for output in config["output"]}
        self._port = engine_call.server_port()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer each request through its sender, or with one response where the model is not decoupled."""
        if not self._decoupled:
            return [self._only_response(request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            for response in self._responses(request, sender):
                base.send(sender, response, last=False)
            sender.send(flags=base.FINAL)
        return None

    def _only_response(self, request: Any) -> Any:
        return next(self._responses(request, None))

    def _responses(self, request: Any, sender: Any) -> Iterator[Any]:
        """The responses to a request; an error is the last one."""
        try:
            yield from self._generate(request, sender)
        except base.RefusedError as refusal:
            yield base.error_answer(refusal)
        except engine_call.CallError as error:
            yield pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), error.code))

    def _generate(self, request: Any, sender: Any) -> Iterator[Any]:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if unserved := sorted(given.keys() & set(UNSERVED)):
            raise base.invalid(f"this model takes text only, not {', '.join(unserved)}")
        stream = bool(given.get("stream", np.zeros(1)).any())
        if stream and not self._decoupled:
            raise base.invalid("this model does not stream")
        inputs = self._engine_inputs(given)
        if not stream:
            for outputs in _answers(self._engine, inputs, ["output_ids", "sequence_length", *self._types]):
                yield response(self._texts(outputs.pop("output_ids"), outputs.pop("sequence_length")), outputs)
            return
        if any(inputs.get(name, np.zeros(1)).any() for name in UNSTREAMED):
            raise base.invalid(f"a stream has no logits: ask for {' and '.join(UNSTREAMED)} without it")
        yield from self._stream(engine_call.EngineCall(self._port, self._engine, inputs), sender)

    def _stream(self, call: engine_call.EngineCall, sender: Any) -> Iterator[Any]:
        window = base.TokenWindow()
        for outputs in call:
            if sender.is_cancelled():
                call.stop()
                return
            window.tokens += outputs["output_ids"][: outputs["sequence_length"][0]]
            piece = window.advance(*self._window_texts(window), last=False)
            yield response([piece.encode()], self._beside(outputs))
        if window.read < len(window.tokens):  # the answer was cut inside a character
            piece = window.advance(*self._window_texts(window), last=True)
            yield response([piece.encode()], {})

    def _beside(self, outputs: dict[str, list[Any]]) -> dict[str, Any]:
        """The engine's other outputs as arrays: of one request and one beam."""
        return {
            name: np.array(outputs[name], kind).reshape([1] * (self._ranks[name] - 1) + [-1])
            for name, kind in self._types.items()
            if name in outputs
        }

    def _engine_inputs(self, given: dict[str, Any]) -> dict[str, Any]:
        wanted = {TO_PREPROCESSING[name]: value for name, value in given.items() if name in TO_PREPROCESSING}
        tokens = _ask("preprocessing", wanted, list(FROM_PREPROCESSING))
        prepared = {FROM_PREPROCESSING[name]: value for name, value in tokens.items() if value.size}
        return prepared | {TO_ENGINE[name]: value for name, value in given.items() if name in TO_ENGINE}

    def _texts(self, tokens: Any, counts: Any) -> list[bytes]:
        inputs = {"TOKENS_BATCH": tokens, "SEQUENCE_LENGTH": counts}
        return list(_ask("postprocessing", inputs, ["OUTPUT"])["OUTPUT"].reshape(-1))

    def _window_texts(self, window: base.TokenWindow) -> tuple[str, str]:
        """The two windows as two beams: one call decodes both."""
        before, after = window.windows()
        rows = np.zeros((1, 2, max(len(after), 1)), np.int32)
        rows[0, 0, : len(before)], rows[0, 1, : len(after)] = before, after
        first, second = self._texts(rows, np.array([[len(before), len(after)]], np.int32))
        return first.decode(), second.decode()


def response(texts: list[bytes], outputs: dict[str, Any]) -> Any:
    """One response: a text for each beam, and the engine's other outputs."""
    tensors = [pb_utils.Tensor(name, value) for name, value in outputs.items()]
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([texts], dtype=object)), *tensors])


def _ask(model: str, inputs: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
    return _read(model, _request(model, inputs, outputs).exec())


def _answers(model: str, inputs: dict[str, Any], outputs: list[str]) -> Iterator[dict[str, Any]]:
    """The responses of a model that may be decoupled; the last one may only say that it is the last."""
    for answer in _request(model, inputs, outputs).exec(decoupled=True):
        if arrays := _read(model, answer):
            yield arrays


def _request(model: str, inputs: dict[str, Any], outputs: list[str]) -> Any:
    return pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=outputs,
        inputs=[pb_utils.Tensor(name, value) for name, value in inputs.items()],
    )


def _read(model: str, answer: Any) -> dict[str, Any]:
    """Arrays of a response by output name; raises `CallError` for an error."""
    if answer.has_error():
        raise engine_call.CallError(model, answer.error().code(), answer.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
