"""An asyncio client of a served model: generations with their content checked and their tokens timed.

    async with GenerationClient("http://127.0.0.1:8000") as client:
        answer = await client.stream("2+2=", maximum_tokens=4)
        answer.ok, answer.text, answer.first_token_seconds

A failed request is data, not an exception: a stream may break off, or say under HTTP 200 that it failed, so every
answer is checked here.

It uses aiohttp, whose C parser keeps up with the rates of a load test, as `base.bounded_http` does for single calls.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.completions import (
    COMPLETIONS_PATH,
    CompletionReader,
    GenerationParameters,
    Piece,
    header_secrets,
    refusal_text,
    request_body,
    shown,
)
from llm_pipeline.serving.endpoint_access import tls_context

LONGEST_ANSWER_BYTES = 16 * 1024 * 1024
"""Far above any generation; a server that sends more is not answering the request."""

NO_ANSWER = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)
"""What aiohttp, and the bounds here, raise for an answer that does not come or is none; a time limit is an OSError."""


@dataclass(frozen=True)
class GenerationRequest(GenerationParameters):
    """One generation request.

    Attributes:
        allow_empty: Accept an answer without text: an evaluation scores it as wrong, and it is no fault of the server.
    """

    allow_empty: bool = False


@dataclass
class Generation:
    """One answer, filled as it comes; times are seconds since the request was sent.

    Attributes:
        text: The whole text.
        output_tokens: As counted by the server.
        finish_reason: `length`, `stop` or `cancelled`; empty when the final chunk is missing.
        status: HTTP status; 0 when there was no answer.
        error: Why the answer cannot be used; empty when it can.
        late: It cannot because it was not whole in time, which is no wrong answer.
        first_token_seconds: First chunk with text in it; None without one.
        total_seconds: Until the last byte.
        chunk_seconds: Arrival of every chunk.
    """

    text: str = ""
    output_tokens: int = 0
    finish_reason: str = ""
    status: int = 0
    error: str = ""
    late: bool = False
    first_token_seconds: float | None = None
    total_seconds: float = 0.0
    chunk_seconds: list[float] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the answer is complete and plausible."""
        return not self.error


class GenerationClient:
    """Connections to one endpoint: a server, or a router in front of several; an async context manager.

    Args:
        base_url: What comes before `/v1`, for example `http://127.0.0.1:8000`.
        model: Its name at the server; None for one of ours, which serves one.
        timeout_seconds: Longest time for one whole answer.
        headers: Sent with every request.
        tls: Context of TLS connections; None for the system's certificates.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        timeout_seconds: float = 60.0,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.model = model
        self.url = base_url.rstrip("/") + COMPLETIONS_PATH
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}
        self._secrets = header_secrets(headers or {})
        self._tls = tls or True

    @classmethod
    def of(cls, endpoint: Endpoint, *, timeout_seconds: float = 60.0) -> Self:
        """A client of an endpoint, with its headers and its certificates.

        Raises:
            ConfigError: A header's variable is not set, or the certificates cannot be read.
        """
        headers, tls = endpoint.headers(), tls_context(endpoint)
        model = endpoint.openai_model
        return cls(endpoint.url, model=model, timeout_seconds=timeout_seconds, headers=headers, tls=tls)

    async def __aenter__(self) -> Self:
        self.session = aiohttp.ClientSession(
            # llama.cpp's server closes a kept connection after a stream, often while the next request is on its way
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls, force_close=True),
            timeout=self._timeout,
            headers=self._headers,
            auto_decompress=False,  # a few bytes can unpack to gigabytes
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def generate(self, request: GenerationRequest) -> Generation:
        """One answer, received as a whole."""
        return await self._ask(request, stream=False)

    async def stream(self, request: GenerationRequest) -> Generation:
        """One answer, received as a stream of chunks."""
        return await self._ask(request, stream=True)

    async def open_stream(self, request: GenerationRequest) -> aiohttp.ClientResponse:
        """A raw stream, for a caller that drops it before its end.

        Raises:
            aiohttp.ClientResponseError: The server refuses the request.
            aiohttp.ClientError: No server answers.
        """
        answer = await self._post(request, stream=True)
        answer.raise_for_status()
        return answer

    async def _post(self, request: GenerationRequest, *, stream: bool) -> aiohttp.ClientResponse:
        body = request_body(request, self.model, stream=stream)
        return await self.session.post(self.url, json=body, allow_redirects=False)  # headers may hold keys

    async def _ask(self, request: GenerationRequest, *, stream: bool) -> Generation:
        generation, reader, started = Generation(), CompletionReader(self.model, stream=stream), time.perf_counter()

        def note(pieces: Sequence[Piece]) -> None:
            for piece in pieces:
                generation.text += piece.text
                generation.chunk_seconds.append(seconds := time.perf_counter() - started)
                if piece.text and generation.first_token_seconds is None:
                    generation.first_token_seconds = seconds

        try:
            async with await self._post(request, stream=stream) as answer:
                generation.status = answer.status
                if answer.status != HTTPStatus.OK:
                    generation.error = f"HTTP {answer.status}: {refusal_text(await read_body(answer))}"
                else:
                    async for received in _bounded(answer):
                        note(reader.take(received))
                        if reader.wrong:
                            break
                    note(reader.end())
        except TimeoutError:
            generation.late = True
            generation.error = f"no complete answer within {self._timeout.total:g} s"
        except NO_ANSWER as error:
            generation.error = f"{type(error).__name__}: {error}"
        generation.total_seconds = time.perf_counter() - started
        generation.output_tokens, generation.finish_reason = reader.tokens, reader.finish_reason
        flaw = reader.flaw(most=request.maximum_tokens, ignore_eos=request.ignore_eos, allow_empty=request.allow_empty)
        if flaw and not generation.error:
            generation.error = flaw[1]
        generation.error = shown(generation.error, self._secrets)
        return generation


async def read_body(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body of an answer.

    Raises:
        ValueError: It is longer than `LONGEST_ANSWER_BYTES`; the connection is closed.
        aiohttp.ClientError: It broke off.
    """
    return b"".join([received async for received in _bounded(answer)])


async def _bounded(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    taken = 0
    async for received in answer.content.iter_any():
        taken += len(received)
        if taken > LONGEST_ANSWER_BYTES:
            answer.close()
            raise ValueError(f"the answer has more than {LONGEST_ANSWER_BYTES} bytes")
        yield received
