"""The custom resources of a real Kubernetes API server, with the interface of their double (`custom_resources.py`).

What the client asks goes through a proxy, for an account that may do what the documentation says (`docs/cluster.md`),
and nothing else. What "somebody else" does is done by the administrator, past the proxy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from custom_resources import _RECORDED, _SCHEMAS, Document
from documented_roles import documented_rules
from faulty_api import Refused
from kubernetes_proxy import KubernetesProxy
from kubernetes_server import KubernetesServer, Refusal
from waiting import until

_KINDS = {"httproutes": "HTTPRoute"}
_SLICES, _OLD_SLICES = "discovery.k8s.io/v1", "discovery.k8s.io/v1beta1"


def define_routes(server: KubernetesServer) -> None:
    """Define the kinds that routers use, once."""
    for kind, file in _SCHEMAS.items():
        group, version, plural = kind.split("/")
        if file:
            schema = json.loads((_RECORDED / file).read_text())["schema"]
            server.define(plural, _KINDS[plural], group, version, schema)


class RealResources(KubernetesProxy):
    """The double's interface on a real server, which has endpoint slices as v1beta1 only: the proxy says so for v1."""

    def __init__(self, server: KubernetesServer, directory: Path, namespace: str) -> None:
        super().__init__(server, directory, server.account(namespace, documented_rules("routers")))

    def respond(self, method: str, target: str, body: Document | None) -> tuple[int, bytes]:
        return super().respond(method, target.replace(f"/{_SLICES}/", f"/{_OLD_SLICES}/"), body)

    def apply(self, plural: str, document: Document) -> None:
        metadata = document["metadata"]
        path = self._path(plural, metadata["namespace"], metadata["name"])
        if plural == "endpointslices":
            document = document | {"apiVersion": _OLD_SLICES, "addressType": "IPv4"}
        if self.server.forward("DELETE", path, None)[0] != 404:
            until(lambda: self.server.forward("GET", path, None)[0] == 404)
        self._write("POST", path.rpartition("/")[0], document)

    def edit(self, plural: str, namespace: str, name: str, change: Callable[[Document], None]) -> None:
        def changed(document: Document) -> Document:
            change(document)
            return document

        self._rewrite(plural, namespace, name, "", changed)

    def write_status(self, plural: str, namespace: str, name: str, status: Document) -> None:
        self._rewrite(plural, namespace, name, "/status", lambda document: document | {"status": status})

    def object(self, plural: str, namespace: str, name: str) -> Document:
        try:
            return self.server.ask("GET", self._path(plural, namespace, name))
        except Refusal as refusal:
            raise KeyError(name) from refusal

    def _rewrite(
        self, plural: str, namespace: str, name: str, part: str, change: Callable[[Document], Document]
    ) -> None:
        path = self._path(plural, namespace, name)
        while True:
            try:
                self._write("PUT", path + part, change(self.object(plural, namespace, name)))
            except Refused as refused:
                if refused.code != 409:
                    raise
            else:
                return

    def _write(self, method: str, path: str, document: Document) -> None:
        try:
            self.server.ask(method, path, document)
        except Refusal as refusal:
            raise Refused(refusal.status, "Real", str(refusal)) from refusal

    def _path(self, plural: str, namespace: str, name: str) -> str:
        version = next(kind for kind in _SCHEMAS if kind.endswith(f"/{plural}")).removesuffix(f"/{plural}")
        version = _OLD_SLICES if version == _SLICES else version
        return f"/apis/{version}/namespaces/{namespace}/{plural}/{name}"
