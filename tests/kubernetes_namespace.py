"""A namespace of a real cluster whose pods run, and what may happen to them there.

API server and controllers are real; the node is a double (`doubles/kubernetes_node.py`). The code under test asks
through a proxy, for an account that has the permissions of the documentation (`docs/cluster.md`), and no others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from documented_roles import documented_rules
from kubernetes_node import Node
from kubernetes_proxy import KubernetesProxy
from kubernetes_server import MERGE, KubernetesServer
from waiting import until


class KubernetesNamespace(KubernetesProxy):
    """One namespace of the server, and its node.

    Attributes:
        namespace: Its name.
        node: What runs pods.
    """

    def __init__(self, server: KubernetesServer, directory: Path, role: str = "jobs") -> None:
        self.namespace = server.namespace()
        self.node = Node(server, self.namespace, directory)
        super().__init__(server, directory, server.account(self.namespace, documented_rules(role)))

    def close(self) -> None:
        super().close()
        self.node.close()

    def kill(self, job: str, reason: str = "OOMKilled") -> None:
        """Kill a Job's container: OOMKilled, or Evicted by its node."""
        self.node.kill(job, reason)

    def rotate(self, job: str, keep: int) -> None:
        """The kubelet rotates the log: only the last lines can still be read."""
        self.node.rotate(job, keep)

    def run_out_of_time(self, job: str) -> None:
        """The Job's deadline is made one that has passed."""
        self.server.ask("PATCH", self._job(job), {"spec": {"activeDeadlineSeconds": 1}}, kind=MERGE)

    def secret(self, name: str, values: dict[str, str]) -> None:
        """Make a Secret."""
        self.server.ask("POST", self._path("secrets"), {"metadata": {"name": name}, "stringData": values})

    def no_more_pods(self) -> None:
        """The namespace's quota is used up, and known to be."""
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
        self.server.ask("POST", self._path("resourcequotas"), quota)
        path = f"{self._path('resourcequotas')}/none"
        until(lambda: "hard" in self.server.ask("GET", path).get("status", {}))

    def job(self, name: str) -> dict[str, Any]:
        return self.server.ask("GET", self._job(name))

    def names(self) -> list[str]:
        """The names of all Jobs."""
        return sorted(job["metadata"]["name"] for job in self.server.ask("GET", self._job(""))["items"])

    def _job(self, name: str) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs" + (f"/{name}" if name else "")

    def _path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}"
