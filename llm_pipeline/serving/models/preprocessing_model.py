"""The model `preprocessing` of the classic set: text to token ids, for clients of the ensemble or the BLS model.

This file is copied into a model repository as `preprocessing/1/model.py`, beside `engine_tokenizer.py`, and stands
alone there. It serves text.
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


class TritonPythonModel:
    """The entry points that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer, whose directory is relative to the repository; the engine's description is beside it."""
        tokenizer_dir = json.loads(args["model_config"])["parameters"]["tokenizer_dir"]["string_value"]
        directory = Path(args["model_repository"]).parent / tokenizer_dir
        self._codec = engine_tokenizer.Codec(directory)
        self._end = engine_tokenizer.end_tokens(directory.with_name("engine"))[0]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Tokenize each request; one response each, in order."""
        responses = []
        for request in requests:
            try:
                outputs = self._outputs({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
            except UnicodeDecodeError as error:
                refusal = pb_utils.TritonError(f"preprocessing: {error}", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=refusal))
            else:
                tensors = [pb_utils.Tensor(name, value) for name, value in outputs.items()]
                responses.append(pb_utils.InferenceResponse(tensors))
        return responses

    def _outputs(self, given: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        prompts = self._tokens(given["QUERY"], special=True)
        rows, width = len(prompts), max(map(len, prompts))
        padded = [prompt + [self._end] * (width - len(prompt)) for prompt in prompts]
        end = np.full((rows, 1), self._end, np.int32)
        return {
            "INPUT_ID": np.array(padded, np.int32).reshape(rows, width),
            "REQUEST_INPUT_LEN": np.array([[len(prompt)] for prompt in prompts], np.int32),
            "REQUEST_OUTPUT_LEN": given["REQUEST_OUTPUT_LEN"],
            "STOP_WORDS_IDS": self._words(given.get("STOP_WORDS_DICT"), rows),
            "BAD_WORDS_IDS": self._words(given.get("BAD_WORDS_DICT"), rows),
            "OUT_END_ID": given.get("END_ID", end),
            "OUT_PAD_ID": given.get("PAD_ID", end),
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
