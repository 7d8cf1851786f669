"""One call of the model that runs a TensorRT-LLM engine, from another model of the same server.

This file is copied into a model repository beside every `model.py` that needs it and stands alone there: standard
library, numpy and triton_python_backend_utils.

Triton does not hand a cancellation on to the called model: it gets a request to stop, under the same request id.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class CallError(Exception):
    """The called model answered with an error; `code` is Triton's."""

    def __init__(self, model: str, error: Any) -> None:
        super().__init__(f"{model}: {error.message()}")
        self.code = error.code()


class EngineCall:
    """A request to the engine's model, whose answers are iterated over once."""

    def __init__(self, model: str, inputs: Mapping[str, Any], outputs: Sequence[str]) -> None:
        """Nothing is sent before the first answer is asked for.

        Args:
            model: Name of the engine's model.
            inputs: Arrays by input name, each with a batch of one.
            outputs: Names of the outputs that are wanted.
        """
        self._model, self._inputs, self._outputs = model, inputs, list(outputs)
        self._request_id = str(secrets.randbits(63))
        self._answers = self._exchange(inputs)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Arrays by output name, of each response that has any; raises `CallError` for an error."""
        return self._answers

    def stop(self) -> None:
        """Have the engine give up what is left of the answer, and wait until it has; never raises, like `drain`."""
        with contextlib.suppress(CallError, pb_utils.TritonModelException):
            deque(self._exchange({**self._inputs, "stop": np.array([[True]], bool)}), maxlen=0)
        self.drain()

    def drain(self) -> None:
        """Wait for the end of an answer that is complete."""
        with contextlib.suppress(CallError, pb_utils.TritonModelException):
            deque(self._answers, maxlen=0)

    def _exchange(self, inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            request_id=self._request_id,
            requested_output_names=self._outputs,
            inputs=[pb_utils.Tensor(name, value) for name, value in inputs.items()],
        )
        for response in request.exec(decoupled=True):
            outputs = read_response(self._model, response)
            if outputs:  # the last response may only say that it is the last
                yield outputs


def read_response(model: str, response: Any) -> dict[str, Any]:
    """Arrays of a response by output name; raises `CallError` for an error."""
    if response.has_error():
        raise CallError(model, response.error())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
