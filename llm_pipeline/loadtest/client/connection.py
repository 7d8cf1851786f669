"""Keep-alive HTTP/1.1 connections to one endpoint, read by llhttp (httptools) as bytes arrive.

A request takes the connection that was used last, and a new one when none is idle: a limit would make requests wait
in the client, and the server would look better than it is. A server may close an idle connection at any moment, also
while a request is on its way. So a request that was written on a reused connection, which was closed before one byte
of the answer came, is written once more, on a new connection; its latency goes on from its schedule. Nothing else is
ever sent twice.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools

from llm_pipeline.loadtest.client.answer import Answer
from llm_pipeline.loadtest.client.messages import Target, load_body
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.traffic import LoadRequest

_monotonic = time.monotonic


class Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, owner: Connections) -> None:
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._payload = b""
        self._reused = self._keep = False
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: the connection stands."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, answer: Answer, payload: bytes) -> None:
        """Write a request."""
        self._answer, self._payload = answer, payload
        if self._transport is None or self._transport.is_closing():
            self.connection_lost(None)
        else:
            self._transport.write(payload)

    def give_up(self, answer: Answer, now: float, fault: Fault, detail: str) -> None:
        """End an answer that is under way here, and the connection with it."""
        if self._answer is answer:
            answer.end(now, fault, detail)
            self._finish(keep=False)

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Asyncio: bytes came. Their time is taken before anything is made of them."""
        self._now = _monotonic()
        if self._answer is None:  # no request is in flight
            self._owner.forget(self)
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._answer.ended_at:
                self._answer.end(self._now, Fault.MALFORMED, f"not HTTP: {error}")
            self._finish(keep=False)
            return
        if self._answer.ended_at:
            self._finish(keep=self._keep)

    def on_headers_complete(self) -> None:
        """The parser: status and headers have come."""
        if self._answer is not None and not self._answer.ended_at:
            self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """The parser: some of the body has come."""
        answer = self._answer
        if answer is None or answer.ended_at:
            return
        answer.take(body, self._now)
        if answer.user_leaves:
            answer.end(self._now, Fault.LEFT, "")
        if answer.ended_at:  # given up early: the rest of the answer is still to come on this connection
            self._keep = False

    def on_message_complete(self) -> None:
        """The parser: the answer has ended. Its connection is free once the parser has returned."""
        answer = self._answer
        if answer is None or answer.ended_at:
            return
        if answer.status < HTTPStatus.OK:  # "100 Continue" and the like announce the answer
            return
        answer.complete(self._now)
        self._keep = self._parser.should_keep_alive()

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: the connection is gone."""
        answer, self._answer = self._answer, None
        self._owner.forget(self)
        if answer is None:
            return
        if self._reused and not answer.status and not answer.retried:
            answer.retried = True
            self._owner.send_anew(answer, self._payload)
            return
        answer.break_off(_monotonic(), str(exc or "the server closed the connection"))
        self._owner.ended(answer)

    def _finish(self, *, keep: bool) -> None:
        answer, self._answer = self._answer, None
        if keep:
            self._reused = True
            self._owner.release(self)
        else:
            self.close()
        if answer is not None:
            self._owner.ended(answer)


class Connections:
    """All connections to one endpoint, and the requests under way on them.

    Args:
        target: The endpoint.
        ended: Called with every answer that has ended, whatever became of it.
    """

    def __init__(self, target: Target, ended: Callable[[Answer], None]) -> None:
        self.ended = ended
        self._target = target
        self._head = target.head()
        self._tls = ssl.create_default_context(cafile=target.ca_file) if target.tls else None
        self._address = target.host
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._under_way: deque[tuple[Answer, Connection]] = deque()  # by their deadlines

    async def prepare(self, spare: int) -> None:
        """Have idle connections before the window begins, up to `spare` of them.

        A burst of new ones at its start would overflow the server's queue of connections, and a packet that is dropped
        there is sent again a second later.
        """
        if not self._idle:
            await self._find_address()
        if self._idle:
            more = [self._connect() for _ in range(spare - len(self._idle))]
            made = await asyncio.gather(*more, return_exceptions=True)
            self._idle += [connection for connection in made if isinstance(connection, Connection)]

    async def _find_address(self) -> None:
        """Resolve the name, and make a connection to the first of its addresses that answers."""
        loop, target = asyncio.get_running_loop(), self._target
        try:
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError:
            return  # each request reports it
        for *_, address in found:
            self._address = str(address[0])
            try:
                self._idle.append(await self._connect())
            except (OSError, TimeoutError):
                continue
            return

    def payload(self, request: LoadRequest) -> bytes:
        """The bytes of a request."""
        body = load_body(request, self._target.model)
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    def send(self, answer: Answer, payload: bytes) -> None:
        """Send a request on an idle connection, or on a new one."""
        if not self._idle:
            self.send_anew(answer, payload)
            return
        connection = self._idle.pop()
        self._under_way.append((answer, connection))
        connection.send(answer, payload)

    def send_anew(self, answer: Answer, payload: bytes) -> None:
        """Send a request on a new connection."""
        task = asyncio.get_running_loop().create_task(self._connect_and_send(answer, payload))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def release(self, connection: Connection) -> None:
        """A connection is idle."""
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        if connection in self._idle:
            self._idle.remove(connection)

    def expire(self) -> None:
        """End the requests that have taken too long."""
        now = _monotonic()
        under_way, timeout = self._under_way, self._target.timeout_seconds
        while under_way:
            answer, connection = under_way[0]
            if not answer.ended_at:
                if now < answer.sent_at + timeout:
                    return
                connection.give_up(answer, now, Fault.TIMEOUT, f"no complete answer within {timeout:g} s")
            under_way.popleft()

    async def _connect_and_send(self, answer: Answer, payload: bytes) -> None:
        try:
            connection = await self._connect()
        except TimeoutError:
            answer.end(_monotonic(), Fault.TIMEOUT, f"no connection within {self._target.timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - TLS errors, wrong names; a request without an end stops the window
            answer.end(_monotonic(), Fault.CONNECTION, f"{type(error).__name__}: {error}")
        else:
            self._under_way.append((answer, connection))
            connection.send(answer, payload)
            return
        self.ended(answer)

    async def _connect(self) -> Connection:
        loop, target = asyncio.get_running_loop(), self._target
        async with asyncio.timeout(target.timeout_seconds):
            _, connection = await loop.create_connection(
                lambda: Connection(self),
                self._address,
                target.port,
                ssl=self._tls,
                server_hostname=target.host if target.tls else None,
            )
        return connection
