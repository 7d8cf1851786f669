"""The model `llm` behind Triton's gRPC, as answers that grow piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_pipeline.artifacts.repository_layout import FEATURES, INPUTS, MODEL_NAME
from llm_pipeline.endpoint.protocol import ApiError

_TYPES = {
    tensor.name: tensor.data_type.removeprefix("TYPE_").replace("STRING", "BYTES") for tensor in (*INPUTS, *FEATURES)
}
_WITH_CODES = {"triton_grpc_error": "true"}
"""Errors in a stream then have a code."""

RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True)
class Piece:
    """What `llm` said at once.

    Attributes:
        text: New text.
        output_tokens: Tokens behind it.
        input_tokens: Tokens of the prompt; 0 but for the first piece.
        finish_reason: Why the answer is complete: `stop` or `length`; empty while it is not.
        logprobs: Of each token, as `llm` tells them.
    """

    text: str
    output_tokens: int
    input_tokens: int = 0
    finish_reason: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)


class Triton:
    """A server's model `llm`; made and used in one event loop.

    Args:
        address: Host and port of its gRPC.
    """

    def __init__(self, address: str) -> None:
        from tritonclient.grpc import InferInput, aio
        from tritonclient.utils import triton_to_np_dtype

        self._client = aio.InferenceServerClient(address)
        self._input, self._dtype = InferInput, triton_to_np_dtype

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def is_ready(self) -> bool:
        """Whether the model answers."""
        from tritonclient.utils import InferenceServerException

        try:
            return bool(await self._client.is_model_ready(MODEL_NAME, client_timeout=2))
        except InferenceServerException:
            return False

    async def generate(self, inputs: Mapping[str, Any]) -> AsyncGenerator[Piece]:
        """The pieces of one answer; a caller that stops earlier and closes this generator cancels it.

        Raises:
            ApiError: The server refused it, or failed.
        """
        from grpc import RpcError

        async def only_request() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": MODEL_NAME, "inputs": [self._tensor(*one) for one in inputs.items()]}

        stream = self._client.stream_infer(only_request(), headers=_WITH_CODES)
        ended = False
        try:
            async for result, error in stream:
                if error is not None:
                    raise ApiError(str(error), status=500)
                piece = _piece(result)
                if piece is None:
                    continue
                if piece.finish_reason == "cancelled":
                    raise ApiError("the server ended this request", status=503, retry_after=RETRY_AFTER_SECONDS)
                ended = bool(piece.finish_reason)
                yield piece
        except RpcError as error:
            raise _told(error.code().name, error.details() or "") from error
        finally:
            stream.cancel()
        if not ended:
            raise ApiError("the answer has no end", status=500)

    def _tensor(self, name: str, value: Any) -> Any:
        kind = _TYPES[name]
        values = value if isinstance(value, list) else [value]
        if kind == "BYTES":
            array = np.array([one.encode() for one in values], dtype=object)
        else:
            array = np.array(values, self._dtype(kind))
        tensor = self._input(name, array.shape, kind)
        tensor.set_data_from_numpy(array)
        return tensor


def _piece(result: Any) -> Piece | None:
    """None for a response without outputs, which only marks the end."""
    text = result.as_numpy("text_output")
    if text is None:
        return None
    said, told = result.as_numpy("logprobs"), result.as_numpy("input_tokens")
    return Piece(
        text[0].decode(),
        int(result.as_numpy("output_tokens")[0]),
        0 if told is None else int(told[0]),
        result.as_numpy("finish_reason")[0].decode(),
        [] if said is None or not said[0] else json.loads(said[0]),
    )


def _told(code: str, message: str) -> ApiError:
    """An error of Triton in OpenAI's form."""
    if code == "INVALID_ARGUMENT":
        if "exceed" in message:
            return ApiError(message, code="context_length_exceeded")
        field_name = next((name for name in _TYPES if message.startswith(name)), None)
        return ApiError(message, param=field_name)
    if code == "UNAVAILABLE" and message.startswith("queue"):
        return ApiError(message, status=429, code="queue_full", retry_after=RETRY_AFTER_SECONDS)
    if code in {"UNAVAILABLE", "NOT_FOUND", "CANCELLED"}:
        return ApiError("the model is not ready", status=503, retry_after=RETRY_AFTER_SECONDS)
    return ApiError(message or code, status=500)


async def generate_all(
    triton: Triton, requests: Sequence[Mapping[str, Any]], at_once: int
) -> AsyncGenerator[tuple[int, Piece]]:
    """The pieces of several answers as they come, each with its request's number; the first error ends them all.

    Args:
        triton: The server.
        requests: Inputs of each.
        at_once: How many are asked at a time.

    Raises:
        ApiError: One was refused, or failed.
    """
    come: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue()
    turn = asyncio.Semaphore(at_once)

    async def ask(number: int, inputs: Mapping[str, Any]) -> None:
        try:
            async with turn, contextlib.aclosing(triton.generate(inputs)) as pieces:
                async for piece in pieces:
                    come.put_nowait((number, piece))
        except Exception as error:  # noqa: BLE001 - raised below, to whoever reads
            come.put_nowait(error)
        come.put_nowait(None)

    tasks = [asyncio.create_task(ask(*one)) for one in enumerate(requests)]
    try:
        left = len(tasks)
        while left:
            match await come.get():
                case None:
                    left -= 1
                case BaseException() as error:
                    raise error
                case said:
                    yield said
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
