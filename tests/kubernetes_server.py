"""A real Kubernetes API server for tests: etcd, kube-apiserver 1.20 and the controllers of workloads, as processes.

Real are admission, validation, RBAC, conflicts, watches, server-side apply, schemas of custom resources, Jobs,
Deployments, garbage collection and quotas. There is no scheduler and no kubelet: `doubles/kubernetes_node.py` plays
them, or a test writes a status. The server is old: it knows neither autoscaling/v2, policy/v1 nor `fieldValidation`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_programs
import pytest
import urllib3
from free_ports import free_ports
from waiting import until

Document = dict[str, Any]

ADMIN_TOKEN = "the-administrator"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_CONTROLLERS = (
    "deployment", "endpoint", "endpointslice", "garbagecollector", "job", "namespace", "podgc", "replicaset",
    "resourcequota", "serviceaccount", "serviceaccount-token",
)  # fmt: skip


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True)
class KubernetesServer:
    """A running server.

    Attributes:
        url: Where it answers.
        directory: Its certificate and its logs.
    """

    url: str
    directory: Path

    @property
    def certificate(self) -> Path:
        """Its own, which signs itself; the key is beside it."""
        return self.directory / "server.crt"

    def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", token: str = ADMIN_TOKEN
    ) -> Document:
        """One request; its answer.

        Raises:
            Refusal: The server does not do it.
        """
        status, data = self.forward(method, path, None if body is None else json.dumps(body), kind=kind, token=token)
        answer: Document = json.loads(data)
        if status >= 400:
            raise Refusal(status, answer.get("message", ""))
        return answer

    def forward(
        self, method: str, path: str, body: str | None, *, kind: str = "application/json", token: str = ADMIN_TOKEN
    ) -> tuple[int, bytes]:
        """One request as it is; status and body of the answer."""
        headers = {"authorization": f"Bearer {token}", "content-type": kind, "accept": "application/json"}
        with urllib3.PoolManager(ca_certs=str(self.certificate)) as pool:
            answer = pool.request(method, f"{self.url}{path}", body=body, headers=headers, retries=False, timeout=60.0)
            return answer.status, answer.data

    def namespace(self, name: str = "") -> str:
        """A new one, whose name is new, too, unless it is given."""
        name = name or f"test-{uuid.uuid4().hex[:10]}"
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        until(lambda: self.ask("GET", accounts)["items"])
        return name

    def account(self, namespace: str, rules: list[Document]) -> str:
        """The token of a new service account that may do what the rules of a Role say, and nothing else."""
        name = f"account-{uuid.uuid4().hex[:8]}"
        roles, core = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}", f"/api/v1/namespaces/{namespace}"
        self.ask("POST", f"{core}/serviceaccounts", {"metadata": {"name": name}})
        self.ask("POST", f"{roles}/roles", {"metadata": {"name": name}, "rules": rules})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
        self.ask("POST", f"{roles}/rolebindings", binding)
        request = self.ask("POST", f"{core}/serviceaccounts/{name}/token", {"spec": {}})
        return str(request["status"]["token"])

    def kubeconfig(self, path: Path, token: str = ADMIN_TOKEN) -> Path:
        """A kubeconfig whose only context is this server, for the account that has the token."""
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "real",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "contexts": [{"name": "real", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }  # fmt: skip
        path.write_text(json.dumps(config))
        return path

    def define(self, plural: str, kind: str, group: str, version: str, schema: Document) -> None:
        """Define a kind of custom objects, with a status of its own, by its OpenAPI schema."""
        names = {"plural": plural, "kind": kind, "singular": kind.lower()}
        text = {"type": "string"}
        properties = schema["properties"] | {"apiVersion": text, "kind": text, "metadata": {"type": "object"}}
        served = {
            "name": version, "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", **schema, "properties": properties}},
        }  # fmt: skip
        approved = {"api-approved.kubernetes.io": "unapproved, for tests"}  # asked of groups of k8s.io
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}", "annotations": approved},
            "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [served]},
        }  # fmt: skip
        self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        until(lambda: self._answers(f"/apis/{group}/{version}/{plural}"))

    def _answers(self, path: str) -> bool:
        try:
            return self.forward("GET", path, None)[0] == 200
        except urllib3.exceptions.HTTPError:
            return False


@contextmanager
def kubernetes_server() -> Iterator[KubernetesServer]:
    """A new, empty cluster that ends with the `with` block; skips the test where its programs are not there."""
    if not kubernetes_programs.are_built():
        pytest.skip(f"no Kubernetes API server in {kubernetes_programs.programs_directory()}: run `make kubernetes`")
    directory = Path(tempfile.mkdtemp(prefix="kubernetes-"))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield _started(directory, processes)
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGKILL)  # nothing of it is needed again, and etcd would wait for its leader
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _started(directory: Path, processes: list[subprocess.Popen[bytes]]) -> KubernetesServer:
    store_port, peer_port, port = free_ports(3)
    store, peers = f"http://127.0.0.1:{store_port}", f"http://127.0.0.1:{peer_port}"
    server = KubernetesServer(f"https://127.0.0.1:{port}", directory)
    key, certificate = str(directory / "server.key"), str(server.certificate)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    (directory / "tokens.csv").write_text(f"{ADMIN_TOKEN},admin,admin,system:masters\n")
    start = lambda name, *flags: processes.append(_start(directory, name, flags))  # noqa: E731
    start(
        "etcd", "--data-dir", f"{directory}/etcd", "--listen-client-urls", store, "--advertise-client-urls", store,
        "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
    )  # fmt: skip
    start(
        "kube-apiserver", f"--etcd-servers={store}", f"--secure-port={port}",
        "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}", f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}", "--service-account-issuer=https://kubernetes.test",
        f"--token-auth-file={directory}/tokens.csv", "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=false",
    )  # fmt: skip
    until(lambda: _alive(processes, directory) and server._answers("/readyz"))
    start(
        "kube-controller-manager", f"--kubeconfig={server.kubeconfig(directory / 'controllers')}",
        f"--service-account-private-key-file={key}", f"--root-ca-file={certificate}",
        f"--controllers={','.join(_CONTROLLERS)}", "--leader-elect=false", "--port=0", "--secure-port=0",
        "--kube-api-qps=200", "--kube-api-burst=400",
    )  # fmt: skip
    until(lambda: server._answers("/api/v1/namespaces/default"))
    return server


def _start(directory: Path, name: str, flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", str(kubernetes_programs.programs_directory() / name), *flags],
            env={"PATH": os.environ["PATH"], "HOME": str(directory)}, cwd=directory, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _alive(processes: list[subprocess.Popen[bytes]], directory: Path) -> bool:
    for process in processes:
        if process.poll() is not None:
            name = Path(process.args[2]).name  # type: ignore[index]
            raise AssertionError(f"{name} ended: {(directory / f'{name}.log').read_text()[-3000:]}")
    return True
