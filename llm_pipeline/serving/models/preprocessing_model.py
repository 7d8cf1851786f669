"""The model `preprocessing` of the classic set: text to token ids, for clients of the ensemble or the BLS model.

This file is copied into a model repository as `preprocessing/1/model.py`, beside `engine_tokenizer.py`, and stands
alone there. It serves text; what only other kinds of models need is refused, not ignored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from llm_pipeline.serving.models import engine_tokenizer
else:
    import engine_tokenizer

UNSERVED = ("IMAGE_BYTES", "IMAGE_URL", "IMAGE_SIZES", "VIDEO_BYTES", "PROMPT_TABLE_EXTRA_ID")


class RefusedError(Exception):
    """The request asks for what this model does not serve, or is inconsistent."""


class TritonPythonModel:
    """The entry points that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer, whose directory is relative to the repository; the engine's description is beside it."""
        configured = json.loads(args["model_config"])["parameters"]
        parameters = {name: value["string_value"] for name, value in configured.items()}
        directory = Path(args["model_repository"]).parent / parameters["tokenizer_dir"]
        self._codec = engine_tokenizer.Codec(directory)
        self._end = engine_tokenizer.end_tokens(directory.with_name("engine"))[0]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Tokenize each request; one response each, in order."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            outputs = self._outputs(request)
        except (RefusedError, UnicodeDecodeError) as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"preprocessing: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])

    def _outputs(self, request: Any) -> dict[str, npt.NDArray[Any]]:
        if unserved := [name for name in UNSERVED if values(request, name) is not None]:
            raise RefusedError(f"this model takes text only, not {', '.join(unserved)}")
        prompts = self._tokens(values(request, "QUERY"), special=True)
        decoder = values(request, "DECODER_QUERY")
        starts = [[self._end] for _ in prompts] if decoder is None else self._tokens(decoder, special=False)
        rows = len(prompts)
        return {
            "INPUT_ID": padded(prompts, self._end),
            "REQUEST_INPUT_LEN": lengths(prompts),
            "DECODER_INPUT_ID": padded(starts, self._end),
            "REQUEST_DECODER_INPUT_LEN": lengths(starts),
            "REQUEST_OUTPUT_LEN": values(request, "REQUEST_OUTPUT_LEN"),
            "STOP_WORDS_IDS": self._words(values(request, "STOP_WORDS_DICT"), rows),
            "BAD_WORDS_IDS": self._words(values(request, "BAD_WORDS_DICT"), rows),
            "EMBEDDING_BIAS": self._bias(request, rows),
            "OUT_END_ID": self._id_or_end(request, "END_ID", rows),
            "OUT_PAD_ID": self._id_or_end(request, "PAD_ID", rows),
            "OUT_PROMPT_TABLE_EXTRA_IDS": np.zeros((rows, 0), np.uint64),
        }

    def _tokens(self, texts: npt.NDArray[Any], *, special: bool) -> list[list[int]]:
        return [self._codec.encode(text.decode("utf-8"), special=special) for text in texts.reshape(-1)]

    def _words(self, words: npt.NDArray[Any] | None, rows: int) -> npt.NDArray[np.int32]:
        """Words of each request as tokens, shape [rows, 2, n]."""
        asked: list[list[list[int]]] = [[] for _ in range(rows)]
        if words is not None:
            for row, texts in enumerate(words.reshape(rows, -1)):
                asked[row] = [one for one in self._tokens(texts, special=False) if one]
        width = max(sum(map(len, row)) for row in asked)
        return np.stack([engine_tokenizer.word_list(row, width) for row in asked])

    def _bias(self, request: Any, rows: int) -> npt.NDArray[np.float32]:
        """What is added to each token's logit, shape [rows, vocabulary]; [rows, 0] for nothing."""
        words, weights = values(request, "EMBEDDING_BIAS_WORDS"), values(request, "EMBEDDING_BIAS_WEIGHTS")
        if words is None and weights is None:
            return np.zeros((rows, 0), np.float32)
        if words is None or weights is None or words.shape != weights.shape:
            raise RefusedError("each of the embedding bias words needs one weight")
        bias = np.zeros((rows, self._codec.size()), np.float32)
        for row in range(rows):
            for tokens, weight in zip(self._tokens(words[row], special=False), weights[row], strict=True):
                bias[row, tokens] += weight
        return bias

    def _id_or_end(self, request: Any, name: str, rows: int) -> npt.NDArray[np.int32]:
        given = values(request, name)
        return np.full((rows, 1), self._end, np.int32) if given is None else given


def values(request: Any, name: str) -> Any:
    """An input as an array; None when it was not sent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def padded(rows: list[list[int]], padding: int) -> npt.NDArray[np.int32]:
    """Token rows as one array, filled up at the end to the longest row."""
    width = max(map(len, rows))
    return np.array([row + [padding] * (width - len(row)) for row in rows], np.int32).reshape(len(rows), width)


def lengths(rows: list[list[int]]) -> npt.NDArray[np.int32]:
    """Length of each row, shape [rows, 1]."""
    return np.array([[len(row)] for row in rows], np.int32)
