"""A webhook and a mail server of this machine, which keep what they are sent."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    """What a server was sent.

    Attributes:
        url: Of the webhook.
        port: Of either.
        answers: Statuses that the webhook gives, one a request; then 200.
    """

    url: str = ""
    port: int = 0
    messages: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.messages]


@contextlib.contextmanager
def webhook_server(path: str = "/services/T0/B0/secret") -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.paths.append(self.path)
            status = received.answers.pop(0) if received.answers else 200
            if status == 200:
                received.messages.append(body)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{received.url}/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_arguments):
            pass

    with _running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        received.port, received.url = port, f"http://127.0.0.1:{port}{path}"
        yield received


@contextlib.contextmanager
def mail_server() -> Iterator[Received]:
    received = Received()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().strip():
                verb = line.split(b" ")[0].upper()
                if verb == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = []
                    while (data := self.rfile.readline()) != b".\r\n":
                        lines.append(data)
                    received.messages.append(b"".join(lines).decode())
                self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
                if verb == b"QUIT":
                    return

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with _running(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        received.port = port
        yield received


@contextlib.contextmanager
def _running(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
