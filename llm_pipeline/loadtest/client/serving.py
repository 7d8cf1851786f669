"""What a client process does: it serves the parent that started it, through a socket, and ends with it.

Connections are aiohttp's, kept open, and as many as there are requests under way: a limit would make requests wait in
the client, and the server would look better than it is. A server may close a kept connection at any moment, also while
a request is on its way: a request on such a connection, of which not one byte was answered, is sent again, and its
latency goes on from its schedule. Nothing else is ever sent twice.

Every byte that arrives is read and timed here. The first token is the first chunk with text in it, not the first chunk.
Tokens are those the server counts, chunk by chunk. A failure is data: a stream may break off, or say under HTTP 200
that it failed. So every answer is checked, by the rules of `serving/completions`, which read it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from math import isnan, nan
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import numpy as np
import uvloop
from numpy.typing import NDArray

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.records import COLUMNS, Fault
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.serving.client import NO_ANSWER
from llm_pipeline.serving.completions import (
    COMPLETIONS_PATH,
    KEPT_CHARACTERS,
    CompletionReader,
    Flaw,
    GenerationParameters,
    Piece,
    header_secrets,
    refusal_text,
    request_body,
    shown,
)
from llm_pipeline.serving.endpoint_access import tls_context

_ORPHANED = 1
_IDLE_SECONDS = 300.0
_monotonic = time.monotonic
_KEPT_BYTES = 1 << 16  # of the body of a refusal
_SHED_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_FAULTS: Mapping[Flaw, Fault] = {
    "error": Fault.ERROR_IN_ANSWER,
    "malformed": Fault.MALFORMED,
    "cut": Fault.CUT,
    "cancelled": Fault.CANCELLED,
    "ended": Fault.ERROR_IN_ANSWER,
    "long": Fault.LONG,
    "short": Fault.SHORT,
    "empty": Fault.EMPTY,
}


def serve_parent() -> None:
    """Serve the parent on stdin, which is a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(serve(Connection(os.dup(sys.stdin.fileno()))))


async def serve(parent: Connection) -> None:
    """Send window after window, until the parent is gone.

    The parent says where to (the endpoint, headers with their values, and how long an answer may take), then for each
    window what (as `Traffic.dealt`) and when it starts; each is answered with None as soon as the next may come, and a
    window with its rows and what failures said.
    """
    said: asyncio.Queue[Any] = asyncio.Queue()
    threading.Thread(target=_listen, args=(parent, asyncio.get_running_loop(), said), daemon=True).start()
    endpoint, headers, timeout_seconds = await said.get()
    sender = Sender(endpoint, headers, timeout_seconds)
    parent.send(None)
    while True:
        numbers, traffic = await said.get()
        with _no_garbage_collection():
            parent.send(None)
            rows = await sender.run(numbers, traffic, await said.get())
        hand_back(parent, rows, sender.details, header_secrets(headers))


def _listen(parent: Connection, loop: asyncio.AbstractEventLoop, said: asyncio.Queue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            loop.call_soon_threadsafe(said.put_nowait, parent.recv())
    os._exit(_ORPHANED)


def hand_back(
    parent: Connection, rows: NDArray[np.float64], details: Mapping[Fault, str], secrets: Sequence[str]
) -> None:
    """Give the parent the rows of a window, and what failures said, without the keys that were sent."""
    parent.send((rows, {fault: shown(detail, secrets) for fault, detail in details.items()}))


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A full collection stops the client for tens of milliseconds, which would look like the server's latency."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


class Sender:
    """One endpoint's connections, kept from window to window.

    Attributes:
        details: What the first failure of each kind said in the last window.
    """

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str], timeout_seconds: float) -> None:
        reuse = aiohttp.TraceConfig()
        reuse.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, ssl=tls_context(endpoint) or True, keepalive_timeout=_IDLE_SECONDS, ttl_dns_cache=None
            ),
            timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **headers},
            auto_decompress=False,
            trace_configs=[reuse],
        )
        self._model, self._timeout_seconds = endpoint.openai_model, timeout_seconds
        self._url = endpoint.url.rstrip("/") + COMPLETIONS_PATH
        self._start, self._rows, self.details = 0.0, array("d"), dict[Fault, str]()

    async def run(self, numbers: Iterable[int], traffic: Traffic, start: float) -> NDArray[np.float64]:
        """Send everything, and wait until each request has ended.

        Args:
            numbers: Places of the requests in the whole window's traffic.
            traffic: What to send.
            start: When the window starts, in CLOCK_MONOTONIC seconds.

        Returns:
            The columns of `Records` in their order, shape [requests, columns].
        """
        self._start, self._rows, self.details = start, array("d"), {}
        requests = zip(numbers, traffic.requests, strict=True)
        due: asyncio.Queue[float] = asyncio.Queue()
        moments = [0.0] if traffic.arrivals is None else traffic.arrivals.tolist()
        pace = (start, moments, asyncio.get_running_loop(), due)
        threading.Thread(target=_pace, args=pace, daemon=True).start()
        async with asyncio.TaskGroup() as tasks:
            if traffic.arrivals is None:
                await due.get()
                for _ in range(traffic.concurrency):
                    tasks.create_task(self._user(requests, traffic.duration_seconds))
            else:
                for number, request in requests:
                    tasks.create_task(self._ask(number, request, await due.get()))
        return np.frombuffer(self._rows, np.float64).reshape(-1, len(COLUMNS))

    async def _user(self, requests: Iterator[tuple[int, LoadRequest]], seconds: float) -> None:
        for number, request in requests:
            since = _monotonic() - self._start
            if since >= seconds:
                return
            await self._ask(number, request, since)

    async def _ask(self, number: int, request: LoadRequest, arrives_at: float) -> None:
        scheduled = self._start + arrives_at
        sent_at, answer = max(_monotonic(), scheduled), Answer(request, self._model)
        asked = GenerationParameters(request.prompt, request.maximum_tokens, ignore_eos=True)
        body = json.dumps(request_body(asked, self._model, stream=True)).encode()
        while not await self._exchanged(answer, body):
            continue
        self._rows.extend((
            number,
            arrives_at,
            sent_at - scheduled,
            answer.first_text_at - scheduled,
            answer.last_text_at - scheduled,
            _monotonic() - scheduled,
            answer.longest_gap,
            answer.reader.input_tokens,
            answer.reader.tokens,
            request.maximum_tokens,
            answer.status,
            answer.fault,
        ))  # fmt: skip
        if answer.detail:
            self.details.setdefault(answer.fault, answer.detail)

    async def _exchanged(self, answer: Answer, body: bytes) -> bool:
        """Send a request and read its answer; False where a kept connection was closed before any of it came."""
        reused: list[bool] = []
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False, trace_request_ctx=reused) as got:
                answer.status = got.status
                async for piece in got.content.iter_any():
                    answer.take(piece, _monotonic())
                    if answer.fault:
                        got.close()
                        break
            answer.complete(_monotonic())
        except TimeoutError:
            answer.end(Fault.TIMEOUT, f"no complete answer within {self._timeout_seconds:g} s")
        except aiohttp.ClientResponseError as error:
            answer.end(Fault.MALFORMED, f"not HTTP: {error.message}")
        except NO_ANSWER as error:
            if reused and isinstance(error, aiohttp.ClientConnectionError) and not answer.status:
                return False
            answer.break_off(_monotonic(), f"{type(error).__name__}: {error}")
        return True


async def _note_reuse(_session: object, context: Any, _parameters: object) -> None:
    context.trace_request_ctx.append(True)


def _pace(start: float, moments: Sequence[float], loop: asyncio.AbstractEventLoop, due: asyncio.Queue[float]) -> None:
    """Say each moment when it has come: event loops round their own timers to milliseconds."""
    for moment in moments:
        time.sleep(max(0.0, start + moment - _monotonic()))
        loop.call_soon_threadsafe(due.put_nowait, moment)


class Answer:
    """One request and its answer so far; all moments are CLOCK_MONOTONIC seconds.

    Attributes:
        request: What is asked.
        reader: Has its tokens.
        status: HTTP status; 0 before the answer begins.
        fault: What became of it, once it has ended.
        detail: What the failure said, cut to what `serving.completions` keeps.
        first_text_at: First chunk with text; NaN without one.
        last_text_at: Last chunk with text; NaN without one.
        longest_gap: Longest silence between two chunks, in seconds.
    """

    def __init__(self, request: LoadRequest, model: str | None = None) -> None:
        self.request, self.reader = request, CompletionReader(model, stream=True)
        self.status, self.fault, self.detail = 0, Fault.NONE, ""
        self.first_text_at, self.last_text_at, self.longest_gap = nan, nan, 0.0
        self._previous_at, self._finish_reason, self._refusal = 0.0, "", b""

    def take(self, body: bytes, now: float) -> None:
        """Take the next bytes of the body, at any boundary; once there is a fault, no more are wanted."""
        if self.status != HTTPStatus.OK:
            self._refusal = (self._refusal + body)[:_KEPT_BYTES]
            return
        self._note(self.reader.take(body), now)
        if self.reader.wrong:
            self.complete(now)
        elif 0 < self.request.cancel_after_tokens <= self.reader.tokens and not self._finish_reason:
            self.end(Fault.LEFT, "")  # as planned; an answer that is already whole is read to its end

    def _note(self, pieces: Sequence[Piece], now: float) -> None:
        for text, tokens, reason in pieces:
            if text:
                self.last_text_at = now
                if isnan(self.first_text_at):
                    self.first_text_at = now
            if text or tokens or reason != self._finish_reason:  # an empty chunk ends no silence
                self._finish_reason = reason
                if self._previous_at:
                    self.longest_gap = max(self.longest_gap, now - self._previous_at)
                self._previous_at = now

    def end(self, fault: Fault, detail: str) -> None:
        """Nothing more will come."""
        self.fault, self.detail = fault, detail[:KEPT_CHARACTERS]

    def break_off(self, now: float, detail: str) -> None:
        """The connection was lost; what came in whole lines may be all of the answer."""
        if self.status:
            self.complete(now, lost=True)
        else:
            self.end(Fault.CONNECTION, detail)

    def complete(self, now: float, *, lost: bool = False) -> None:
        """The body has ended: judge it, unless it has a fault already."""
        if self.fault:
            return
        if self.status != HTTPStatus.OK:
            fault = Fault.SHED if self.status in _SHED_STATUSES else Fault.REFUSED
            self.end(fault, f"HTTP {self.status}: {refusal_text(self._refusal)}")
            return
        self._note(self.reader.end(lost=lost), now)
        if flaw := self.reader.flaw(most=self.request.maximum_tokens, ignore_eos=True):
            self.end(_FAULTS[flaw[0]], flaw[1])
