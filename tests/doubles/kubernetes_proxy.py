"""A proxy before a real Kubernetes API server: it counts, and lets go wrong what a test asks for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from kubeconfig import write_kubeconfig
from kubernetes_api import Refused, _handler, _Server
from kubernetes_server import KubernetesServer


class KubernetesProxy:
    """Forwards what it is asked with the token of one account.

    Attributes:
        account: The token.
        calls: What was asked, e.g. `PUT httproutes`.
        before_put: Called before each put is forwarded: what others do meanwhile.
    """

    def __init__(self, server: KubernetesServer, directory: Path, account: str) -> None:
        self.server, self.account, self._directory = server, account, directory
        self.calls: list[str] = []
        self.before_put: list[Callable[[], None]] = []
        self._faults: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self._proxy = _Server(("127.0.0.1", 0), _handler(self))  # type: ignore[arg-type]
        threading.Thread(target=self._proxy.serve_forever, args=(0.02,), daemon=True).start()

    def kubeconfig(self) -> Path:
        """A kubeconfig whose only context is the proxy."""
        return write_kubeconfig(self._directory, self._proxy.server_port)

    def close(self) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()

    def answer(self, status: int, *, times: int, to: str = "") -> None:
        """Answer the next calls with an error; 0 does what is asked and breaks the connection off in the answer."""
        self._faults += [(to, status)] * times

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self._faults.clear()
        self.before_put.clear()

    def respond(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """One call: status and body."""
        parts = urlparse(target).path.partition("/namespaces/")[2].split("/")[1:]
        self.calls.append(f"{method} {'log' if parts[-1:] == ['log'] else parts[0]}")
        fault = self._fault(self.calls[-1])
        if fault:
            raise Refused(fault, "Injected", "the test asked for it")
        if method == "PUT" and self.before_put:
            self.before_put.pop(0)()
        sent = None if body is None else json.dumps(body)
        status, data = self.server.forward(method, target, sent, token=self.account)
        return (status if fault is None else 0), data

    def _fault(self, call: str) -> int | None:
        with self._lock:
            found = next((fault for fault in self._faults if fault[0] in call), None)
            if found:
                self._faults.remove(found)
        return found[1] if found else None
