"""An HTTP proxy in front of an S3 server that goes wrong where a test says.

with faulty(server.endpoint) as faults:
    faults.inject(reset_after, when=is_a("PUT", "_COMPLETE.json"))
    store = S3Store(store_settings(uri=..., endpoint=faults.endpoint))
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """A request as it arrived; header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = field(repr=False)
    target: str = field(repr=False)


@dataclass(frozen=True)
class Response:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes


class Broken(Exception):
    """The connection is to be reset, or closed in order, after sending this much of an answer."""

    def __init__(self, response: Response | None = None, length: int = 0, *, reset: bool = True) -> None:
        super().__init__("reset")
        self.response = response
        self.length = length
        self.reset = reset


class Exchange:
    """One request on its way."""

    def __init__(self, faults: Faults, request: Request) -> None:
        self.faults = faults
        self.request = request

    def forward(self) -> Response:
        """Let the server serve the request."""
        connection = http.client.HTTPConnection(self.faults.server, timeout=30)
        try:
            connection.request(self.request.method, self.request.target, self.request.body, self.request.headers)
            answer = connection.getresponse()
            return Response(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()


Fault = Callable[[Exchange], Response]
When = Callable[[Request], bool]


@dataclass
class _Injected:
    fault: Fault
    when: When
    skip: int
    times: int


class Faults:
    """A running proxy: the faults it has yet to commit, and the requests it has seen."""

    def __init__(self, server: str, endpoint: str) -> None:
        self.server = server
        self.endpoint = endpoint
        self.requests: list[Request] = []
        self._injected: list[_Injected] = []
        self._lock = threading.Lock()

    def inject(self, fault: Fault, *, when: When, skip: int = 0, times: int = 1) -> None:
        """Commit a fault at `times` matching requests, after letting `skip` of them pass."""
        self._injected.append(_Injected(fault, when, skip, times))

    def seen(self, when: When) -> list[Request]:
        """The requests so far that match."""
        return [request for request in self.requests if when(request)]

    def heal(self) -> None:
        """Forget faults and requests."""
        with self._lock:
            self._injected.clear()
            self.requests.clear()

    @property
    def committed(self) -> bool:
        """Whether every injected fault was."""
        return all(injected.times == 0 for injected in self._injected)

    def answer(self, request: Request) -> Response:
        exchange = Exchange(self, request)
        fault = self._next(request)
        return fault(exchange) if fault else exchange.forward()

    def _next(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            for injected in self._injected:
                if injected.times and injected.when(request):
                    if injected.skip:
                        injected.skip -= 1
                        continue
                    injected.times -= 1
                    return injected.fault
        return None


def is_a(method: str, ending: str = "", **query: str) -> When:
    """Requests of a method on keys with that ending, with (`name=""`: whatever value) those query parameters."""

    wanted = {name.replace("_", "-"): value for name, value in query.items()}

    def matches(request: Request) -> bool:
        found = all(name in request.query and request.query[name].startswith(value) for name, value in wanted.items())
        return found and request.method == method and request.path.endswith(ending)

    return matches


def always(request: Request) -> bool:
    """Every request."""
    return True


def reset_before(exchange: Exchange) -> Response:
    """The connection breaks before the server sees the request."""
    raise Broken


def reset_after(exchange: Exchange) -> Response:
    """The server serves the request, and the connection breaks before its answer arrives."""
    exchange.forward()
    raise Broken


def truncated(exchange: Exchange, *, reset: bool = True) -> Response:
    """The connection breaks in the middle of the answer's body; a proxy that lost its server closes it in order."""
    response = exchange.forward()
    raise Broken(response, len(response.body) // 2, reset=reset)


def damaged(exchange: Exchange) -> Response:
    """One bit of the answer's body is wrong."""
    response = exchange.forward()
    return Response(response.status, response.headers, response.body[:-1] + bytes([response.body[-1] ^ 1]))


def error(status: int, code: str, *, served: bool = False) -> Fault:
    """An error answer; the server may have served the request nevertheless."""

    def fault(exchange: Exchange) -> Response:
        if served:
            exchange.forward()
        body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        return Response(status, {"Content-Type": "application/xml"}, body)

    return fault


def after(action: Callable[[], object]) -> Fault:
    """Something else happens first; then the request is served."""

    def fault(exchange: Exchange) -> Response:
        action()
        return exchange.forward()

    return fault


@contextmanager
def faulty(endpoint: str) -> Iterator[Faults]:
    """A proxy in front of an endpoint, that ends with the `with` block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.faults = Faults(urlsplit(endpoint).netloc, f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.faults
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    faults: Faults
    daemon_threads = True
    block_on_close = False

    def shutdown_request(self, request: object) -> None:
        """Close without the orderly end, so that a broken connection is a reset one."""
        self.close_request(request)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, unquote(url.path), query, headers, body, self.path)
        try:
            response = self.server.faults.answer(request)
        except Broken as broken:
            if broken.response:
                self._send(broken.response, broken.length)
            if broken.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
        else:
            self._send(response, len(response.body))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - names that http.server calls

    def _send(self, response: Response, length: int) -> None:
        self.send_response(response.status)
        given = {name.lower() for name in response.headers}
        for name, value in response.headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        if "content-length" not in given:
            self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body[:length])
        self.wfile.flush()

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""
