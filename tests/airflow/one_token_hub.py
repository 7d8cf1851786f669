"""A hub that knows one token, and whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

KEY = "k3y-that-nobody-sees"


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Bearer {KEY}"
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(b'{"name": "anna"}' if known else b"{}")


@contextmanager
def hub() -> Iterator[str]:
    """Its URL."""
    with HTTPServer(("127.0.0.1", 0), _Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
