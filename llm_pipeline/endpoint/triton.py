"""The model `llm` behind Triton's `generate_stream`, as answers that grow piece by piece.

Not by gRPC: Triton 2.51 dies of a freed request when clients leave streams there (one of some 200 that were left).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import aiohttp
from pydantic_core import from_json

from llm_pipeline.artifacts.repository_layout import FEATURES, INPUTS, MODEL_NAME
from llm_pipeline.endpoint.protocol import ApiError

_READY_SECONDS = aiohttp.ClientTimeout(total=2)
_NAMES = tuple(tensor.name for tensor in (*INPUTS, *FEATURES))

_CLIENTS_NAMES = {"input_ids": "prompt", "text_input": "prompt", "json_schema": "response_format"}
"""What clients call them."""

RETRY_AFTER_SECONDS = 1


class Piece(NamedTuple):
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
    logprobs: Sequence[dict[str, Any]] = ()


class Triton:
    """A server's model `llm`; made and used in one event loop.

    Args:
        address: Host and port of its HTTP endpoint.
    """

    def __init__(self, address: str) -> None:
        self._model = f"http://{address}/v2/models/{MODEL_NAME}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def is_ready(self) -> bool:
        """Whether the model answers."""
        try:
            async with self._session.get(f"{self._model}/ready", timeout=_READY_SECONDS) as answer:
                return answer.status == HTTPStatus.OK
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def generate(self, inputs: Mapping[str, Any]) -> AsyncGenerator[list[Piece]]:
        """The pieces of one answer, together what came together; a caller that closes this generator cancels it.

        Raises:
            ApiError: The server refused it, or failed.
        """
        try:
            answer = await self._session.post(f"{self._model}/generate_stream", json=dict(inputs))
        except aiohttp.ClientError as error:
            raise _not_ready() from error
        ended, rest = False, b""
        try:
            async for part in answer.content.iter_any():
                *events, rest = (rest + part).split(b"\n\n")
                if pieces := [_piece(event, answer.status) for event in events]:
                    ended = bool(pieces[-1].finish_reason)
                    yield pieces
            if rest.strip():  # a refusal is one object alone, as an event or not
                piece = _piece(rest, answer.status)
                ended = bool(piece.finish_reason)
                yield [piece]
        except (aiohttp.ClientError, ValueError, LookupError) as error:
            raise ApiError(f"the answer broke off: {type(error).__name__}", status=500) from error
        finally:
            answer.close()
        if not ended:
            raise ApiError("the answer has no end", status=500)


def _piece(event: bytes, status: int) -> Piece:
    said = from_json(event.removeprefix(b"data:"))
    if "error" in said:
        raise _told(status, str(said["error"]))
    if said["finish_reason"] == "cancelled":
        raise ApiError("the server ended this request", status=503, retry_after=RETRY_AFTER_SECONDS)
    told = said.get("logprobs")
    return Piece(
        said["text_output"],
        said["output_tokens"],
        said.get("input_tokens", 0),
        said["finish_reason"],
        from_json(told) if told else (),
    )


def _not_ready() -> ApiError:
    return ApiError("the model is not ready", status=503, retry_after=RETRY_AFTER_SECONDS)


def _told(status: int, text: str) -> ApiError:
    """An error of Triton in OpenAI's form: `llm` says what kind it is, where every status is 400."""
    kind, _, message = text.partition(": ")
    if kind == "invalid":
        if "exceed" in message:
            return ApiError(message, code="context_length_exceeded")
        name = next((name for name in _NAMES if message.startswith(name)), "")
        param = _CLIENTS_NAMES.get(name, name)
        return ApiError(param + message.removeprefix(name), param=param or None)
    if kind == "rejected":
        if message.startswith("queue"):
            return ApiError(message, status=429, code="queue_full", retry_after=RETRY_AFTER_SECONDS)
        return ApiError(message, status=503, retry_after=RETRY_AFTER_SECONDS)
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE}:
        return _not_ready()
    return ApiError(message if kind == "failed" else text, status=500)


async def generate_all(
    triton: Triton, requests: Sequence[Mapping[str, Any]], at_once: int
) -> AsyncGenerator[tuple[int, list[Piece]]]:
    """The pieces of several answers as they come, each with its request's number; the first error ends them all.

    Args:
        triton: The server.
        requests: Inputs of each.
        at_once: How many are asked at a time.

    Raises:
        ApiError: One was refused, or failed.
    """
    if len(requests) == 1:  # as most are: without a task and a queue for its tokens
        async with contextlib.aclosing(triton.generate(requests[0])) as answer:
            async for pieces in answer:
                yield 0, pieces
        return
    come: asyncio.Queue[tuple[int, list[Piece]] | BaseException | None] = asyncio.Queue()
    turn = asyncio.Semaphore(at_once)

    async def ask(number: int, inputs: Mapping[str, Any]) -> None:
        try:
            async with turn, contextlib.aclosing(triton.generate(inputs)) as answer:
                async for pieces in answer:
                    come.put_nowait((number, pieces))
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
