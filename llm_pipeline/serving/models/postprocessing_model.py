"""The model `postprocessing` of the classic set: token ids to text, for clients of the ensemble or the BLS model.

This file is copied into a model repository as `postprocessing/1/model.py`, beside `engine_tokenizer.py`, and stands
alone there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from llm_pipeline.serving.models import engine_tokenizer
else:
    import engine_tokenizer


class TritonPythonModel:
    """The entry points that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer, whose directory is relative to the repository."""
        tokenizer_dir = json.loads(args["model_config"])["parameters"]["tokenizer_dir"]["string_value"]
        self._codec = engine_tokenizer.Codec(Path(args["model_repository"]).parent / tokenizer_dir)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode the tokens of each request; one response each, in order."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()  # [requests, beams, tokens]
        counts = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()  # [requests, beams]
        texts = [
            [self._codec.decode(beam[:count].tolist()).encode() for beam, count in row]
            for row in (zip(*one, strict=True) for one in zip(tokens, counts, strict=True))
        ]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array(texts, dtype=object))])
