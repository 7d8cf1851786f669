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
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.completions import (
    COMPLETIONS_PATH,
    CompletionReader,
    ErrorInAnswer,
    GenerationParameters,
    NotAnAnswer,
    flaw_of,
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


@dataclass(frozen=True)
class Generation:
    """One answer; times are seconds since the request was sent.

    Attributes:
        text: The whole text.
        output_tokens: As counted by the server.
        finish_reason: `length`, `stop` or `cancelled`; empty when the final chunk is missing.
        status: HTTP status; 0 when there was no answer.
        error: Why the answer cannot be used; empty when it can.
        late: It cannot because it was not whole in time, which is no wrong answer.
        sent_at: `time.perf_counter()` at the send.
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
    sent_at: float = 0.0
    first_token_seconds: float | None = None
    total_seconds: float = 0.0
    chunk_seconds: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the answer is complete and plausible."""
        return not self.error


@dataclass
class _Reading:
    """A partly received answer."""

    reader: CompletionReader
    sent_at: float = field(default_factory=time.perf_counter)
    texts: list[str] = field(default_factory=list)
    chunk_seconds: list[float] = field(default_factory=list)
    output_tokens: int = 0
    finish_reason: str = ""
    status: int = 0
    error: str = ""
    late: bool = False
    first_token_seconds: float | None = None

    def elapsed(self) -> float:
        return time.perf_counter() - self.sent_at

    def add(self, raw: bytes) -> None:
        """Add one JSON chunk; a chunk that is no answer becomes the error."""
        now = self.elapsed()
        try:
            piece = self.reader.read(raw)
        except (ErrorInAnswer, NotAnAnswer) as fault:
            self.error = self.error or str(fault)
            return
        if piece is None:
            return
        self.output_tokens += piece.tokens
        self.finish_reason = piece.finish_reason
        self.chunk_seconds.append(now)
        self.texts.append(piece.text)
        if piece.text and self.first_token_seconds is None:
            self.first_token_seconds = now

    def finish(self, request: GenerationRequest) -> Generation:
        """The answer with its error, if it is incomplete or implausible."""
        text, tokens = "".join(self.texts), self.output_tokens
        flaw = flaw_of(
            tokens,
            self.finish_reason,
            most=request.maximum_tokens,
            ignore_eos=request.ignore_eos,
            has_text=bool(text) or request.allow_empty,
        )
        return Generation(
            text=text,
            output_tokens=tokens,
            finish_reason=self.finish_reason,
            status=self.status,
            error=self.error or self.reader.lacks() or (flaw[1] if flaw else ""),
            late=self.late,
            sent_at=self.sent_at,
            first_token_seconds=self.first_token_seconds,
            total_seconds=self.elapsed(),
            chunk_seconds=tuple(self.chunk_seconds),
        )


class GenerationClient:
    """Connections to one endpoint: a server, or a router in front of several.

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
        self._session: aiohttp.ClientSession | None = None

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
        self._session = aiohttp.ClientSession(
            # llama.cpp's server closes a kept connection after a stream, often while the next request is on its way
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls, force_close=True),
            timeout=self._timeout,
            headers=self._headers,
            auto_decompress=False,  # a few bytes can unpack to gigabytes
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open session; the client is an async context manager."""
        if self._session is None:
            raise RuntimeError("use `async with GenerationClient(...)`")
        return self._session

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
        if answer.status != HTTPStatus.OK:
            answer.release()
            raise aiohttp.ClientResponseError(answer.request_info, (), status=answer.status)
        return answer

    async def _post(self, request: GenerationRequest, *, stream: bool) -> aiohttp.ClientResponse:
        body = request_body(request, self.model, stream=stream)
        return await self.session.post(self.url, json=body, allow_redirects=False)  # headers may hold keys

    async def _ask(self, request: GenerationRequest, *, stream: bool) -> Generation:
        reading = _Reading(CompletionReader(self.model, stream=stream))
        try:
            async with await self._post(request, stream=stream) as answer:
                reading.status = answer.status
                if answer.status != HTTPStatus.OK:
                    reading.error = f"HTTP {answer.status}: {refusal_text(await read_body(answer))}"
                elif stream:
                    await _read_events(answer, reading)
                else:
                    reading.add(await read_body(answer))
        except TimeoutError:
            reading.late = not reading.error
            reading.error = reading.error or f"no complete answer within {self._timeout.total:g} s"
        except NO_ANSWER as error:
            reading.error = reading.error or f"{type(error).__name__}: {error}"
        reading.error = shown(reading.error, self._secrets)
        return reading.finish(request)


async def read_body(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body of an answer.

    Raises:
        ValueError: It is longer than `LONGEST_ANSWER_BYTES`; the connection is closed.
        aiohttp.ClientError: It broke off.
    """
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        _require_bounded(answer, len(body))
    return bytes(body)


async def _read_events(answer: aiohttp.ClientResponse, reading: _Reading) -> None:
    taken = 0
    async for line in answer.content:
        taken += len(line)
        _require_bounded(answer, taken)
        if line.startswith(b"data:"):
            reading.add(line[5:])


def _require_bounded(answer: aiohttp.ClientResponse, taken: int) -> None:
    if taken > LONGEST_ANSWER_BYTES:
        answer.close()
        raise ValueError(f"the answer has more than {LONGEST_ANSWER_BYTES} bytes")
