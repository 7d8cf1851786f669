"""An HTTP server that answers each path as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answers = Mapping[str, tuple[int, str]] | Callable[[str, bytes], tuple[int, str]]


@contextmanager
def answering(answers: Answers) -> Iterator[str]:
    """Serve status and body by path (and what was sent), 404 for others, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = answers(self.path, said) if callable(answers) else answers.get(self.path, (404, "{}"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *arguments: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
