"""What the doubles of Kubernetes' API have in common: they speak HTTP, count calls, and let go wrong what is asked."""

from __future__ import annotations

import json
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

Document = dict[str, Any]


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class FaultyApi(ABC):
    """A server, to which the official client talks unchanged.

    Attributes:
        calls: What was asked, e.g. `PUT httproutes`.
        before_put: Called before each put is looked at: what others do meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._faults: list[tuple[str, int]] = []
        self._faults_lock = threading.Lock()
        self.calls: list[str] = []
        self.before_put: list[Callable[[], None]] = []
        self._server = Server(("127.0.0.1", 0), handler(self.respond, _status))
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def kubeconfig(self) -> Path:
        """A kubeconfig whose only context is this server."""
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
        named = {"name": "test", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [named]}
        path = self._directory / "kubeconfig"
        path.write_text(json.dumps({**config, "users": [{"name": "u", "user": {}}], "current-context": "test"}))
        return path

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, status: int, *, times: int, to: str = "") -> None:
        """Answer the next calls with an error; 0 does what is asked and breaks the connection off in the answer."""
        self._faults += [(to, status)] * times

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self._faults.clear()
        self.before_put.clear()

    @abstractmethod
    def perform(self, method: str, target: str, body: Document | None) -> tuple[int, bytes]:
        """One call: status and body.

        Raises:
            Refused: It is refused.
        """

    def respond(self, method: str, target: str, body: Document | None) -> tuple[int, bytes]:
        """One call, with what goes wrong."""
        kind, *rest = urlparse(target).path.partition("/namespaces/")[2].split("/")[1:] or [""]
        self.calls.append(f"{method} {'log' if rest[-1:] == ['log'] else kind}")
        fault = self._fault(self.calls[-1])
        if fault:
            raise Refused(fault, "Injected", "the test asked for it")
        if method == "PUT" and self.before_put:
            self.before_put.pop(0)()
        status, data = self.perform(method, target, body)
        return (status if fault is None else 0), data

    def _fault(self, call: str) -> int | None:
        with self._faults_lock:
            found = next((fault for fault in self._faults if fault[0] in call), None)
            if found:
                self._faults.remove(found)
        return found[1] if found else None


def selected(thing: Document, selector: str) -> bool:
    """Whether an object has the labels of a selector."""
    wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
    return wanted.items() <= thing["metadata"].get("labels", {}).items()


def _status(refused: Refused) -> Document:
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refused.code}
    return document | {"reason": refused.reason, "message": refused.message}


class Server(ThreadingHTTPServer):
    """A client that hangs up is no error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def handler(
    respond: Callable[[str, str, Document | None], tuple[int, bytes]], told: Callable[[Refused], Document]
) -> type[BaseHTTPRequestHandler]:
    """Answers requests.

    Args:
        respond: One call: status and body; with status 0 the connection breaks off in the answer.
        told: What a refusal is in an answer.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            try:
                status, data = respond(self.command, self.path, body)
            except Refused as refused:
                status, data = refused.code, json.dumps(told(refused)).encode()
            self.send_response(status or 200)
            self.send_header("content-type", "application/json" if data.startswith(b"{") else "text/plain")
            if status not in (204, 304):
                self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data if status else data[: len(data) // 2])
            self.close_connection = self.close_connection or not status

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = answer  # noqa: N815

    return Handler
