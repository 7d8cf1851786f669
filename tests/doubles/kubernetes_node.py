"""A double of one node, for a real API server: a scheduler that takes every pod, and a kubelet. Not Kubernetes.

It watches the pods of one namespace through the real API, binds them to its node, and really runs their containers
(`kubernetes_pods.py`); Secrets are the API's. It writes statuses as a kubelet does, and the API server asks it for logs
as it asks a kubelet, over TLS.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import urllib3
from faulty_api import Server
from kubernetes_pods import UNSCHEDULABLE, Document, Kubelet, Pod
from kubernetes_server import ADMIN_TOKEN, MERGE, KubernetesServer, Refusal

_LOG = re.compile(r"/containerLogs/[^/]+/(?P<pod>[^/]+)/(?P<container>[^/]+)")


class Node(Kubelet):
    """The node."""

    def __init__(self, server: KubernetesServer, namespace: str, directory: Path) -> None:
        super().__init__(directory)
        self._server, self._namespace = server, namespace
        self._name = f"node-of-{namespace}"
        self._over = threading.Event()
        self._kubelet = Server(("127.0.0.1", 0), _kubelet(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.certificate, server.certificate.with_suffix(".key"))
        self._kubelet.socket = context.wrap_socket(self._kubelet.socket, server_side=True)
        self._register()
        self._threads = [
            threading.Thread(target=self._kubelet.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._watch, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        self._kubelet.shutdown()
        self._kubelet.server_close()
        for thread in self._threads:
            thread.join(10)
        self.kill_all()
        self._ask("DELETE", f"/api/v1/nodes/{self._name}")

    def secret(self, name: str) -> dict[str, str]:
        data = self._server.ask("GET", f"/api/v1/namespaces/{self._namespace}/secrets/{name}")["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def told(self, pod: Pod) -> None:
        self._ask("PATCH", f"{self._of_pods}/{pod.name}/status", {"status": pod.status}, kind=MERGE)

    def end(self, pod: Pod) -> None:
        super().end(pod)
        uid = pod.object["metadata"]["uid"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self._ask("DELETE", f"{self._of_pods}/{pod.name}", options)
        with self._lock:
            self._pods.pop(uid, None)

    def _register(self) -> None:
        self._ask("POST", "/api/v1/nodes", {"metadata": {"name": self._name}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet.server_port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        }
        self._ask("PATCH", f"/api/v1/nodes/{self._name}/status", {"status": status}, kind=MERGE)

    def _ask(self, method: str, path: str, body: Any = None, **options: Any) -> Document:
        """Ask the API; nothing where the object is gone meanwhile."""
        try:
            return self._server.ask(method, path, body, **options)
        except Refusal as refusal:
            if refusal.status in (404, 409):
                return {}
            raise

    @property
    def _of_pods(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods"

    def _watch(self) -> None:
        """List, then watch from there; again when the watch ends or its beginning is too old."""
        while not self._over.is_set():
            listed = self._ask("GET", self._of_pods)
            for pod in listed["items"]:
                self._see(pod)
            version = listed["metadata"]["resourceVersion"]
            with urllib3.PoolManager(ca_certs=str(self._server.certificate)) as pool:
                try:
                    self._follow(pool, version)
                except (urllib3.exceptions.HTTPError, http.client.HTTPException, ValueError, OSError):
                    continue

    def _follow(self, pool: urllib3.PoolManager, version: str) -> None:
        query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds=5&resourceVersion={version}"
        answer = pool.request(
            "GET", f"{self._server.url}{self._of_pods}?{query}", headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
            preload_content=False, retries=False, timeout=30.0,
        )  # fmt: skip
        rest = b""
        for chunk in answer.stream(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(json.loads, lines):
                if event["type"] == "ERROR" or self._over.is_set():
                    return
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._see(event["object"])

    def _see(self, pod: Document) -> None:
        metadata = pod["metadata"]
        known = self._pods.get(metadata["uid"])
        if "deletionTimestamp" in metadata:
            if known and not known.ending:
                known.ending = True
                threading.Thread(target=self.end, args=(known,), daemon=True).start()
        elif not pod["spec"].get("nodeName"):
            self._schedule(pod)
        elif pod["spec"]["nodeName"] == self._name and known is None:
            self.begin(metadata["uid"], Pod(pod, self._directory / metadata["name"]))

    def _schedule(self, pod: Document) -> None:
        path = f"{self._of_pods}/{pod['metadata']['name']}"
        if self.full:
            if not (pod.get("status") or {}).get("conditions"):
                self._ask("PATCH", f"{path}/status", {"status": {"conditions": [UNSCHEDULABLE]}}, kind=MERGE)
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": self._name}
        self._ask("POST", f"{path}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target})


def _kubelet(node: Node) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            url = urlparse(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            match = _LOG.fullmatch(url.path)
            text = node.log(match["pod"], query | {"container": match["container"]}) if match else None
            data = b"the container is waiting to start" if text is None else text.encode()
            self.send_response(400 if text is None else 200)
            self.send_header("content-type", "text/plain")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
