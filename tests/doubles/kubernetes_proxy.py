"""A proxy before a real Kubernetes API server: it counts, and lets go wrong what a test asks for."""

from __future__ import annotations

import json
from pathlib import Path

from faulty_api import Document, FaultyApi
from kubernetes_server import KubernetesServer


class KubernetesProxy(FaultyApi):
    """Forwards what it is asked with the token of one account.

    Attributes:
        account: The token.
    """

    def __init__(self, server: KubernetesServer, directory: Path, account: str) -> None:
        self.server, self.account = server, account
        super().__init__(directory)

    def perform(self, method: str, target: str, body: Document | None) -> tuple[int, bytes]:
        return self.server.forward(method, target, None if body is None else json.dumps(body), token=self.account)
