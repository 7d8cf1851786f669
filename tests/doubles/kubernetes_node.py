"""A double of one node, for a real API server: a scheduler that takes every pod, and a kubelet. Not Kubernetes.

It watches the pods of one namespace through the real API, binds them to its node, and really runs their containers,
init containers first, as processes of this machine with the container's environment only; Secrets are the API's.
Paths of `emptyDir` and downward-API volumes are rewritten in commands, claims are at their own path, ports are the
machine's. It writes statuses as a kubelet does, and the API server asks it for logs as it asks a kubelet, over TLS.
A container that failed is not started again. Resources, users, security contexts and networks are not enforced.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import urllib3
from kubernetes_api import _rfc3339, _Server
from kubernetes_server import ADMIN_TOKEN, MERGE, KubernetesServer, Refusal, until

Document = dict[str, Any]

_LOG = re.compile(r"/containerLogs/[^/]+/(?P<pod>[^/]+)/(?P<container>[^/]+)")
_OF_THE_MACHINE = ("/tmp", "/dev/shm")  # noqa: S108 - paths inside containers
_POLL_SECONDS = 0.1


@dataclass
class Running:
    """A pod of this node, the processes of the containers that were started, and the logs of all of them."""

    manifest: Document
    directory: Path
    status: Document = field(default_factory=lambda: {"phase": "Pending", "podIP": "10.1.0.1"})
    logs: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed_for: str = ""
    ending: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    def signal(self, number: signal.Signals) -> None:
        for process in self.running():
            os.killpg(process.pid, number)

    def running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes if process.poll() is None]


class Node:
    """The node.

    Attributes:
        programs: Programs of this machine that stand for those of the images, by their path there.
        missing_images: Images that cannot be pulled.
        full: It takes no pod.
    """

    def __init__(self, server: KubernetesServer, namespace: str, directory: Path) -> None:
        self._server, self._namespace, self._directory = server, namespace, directory
        self._name = f"node-of-{namespace}"
        self._pods: dict[str, Running] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self.programs: dict[str, str] = {}
        self.missing_images: set[str] = set()
        self.full = False
        self._kubelet = _Server(("127.0.0.1", 0), _kubelet(self))
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
        for pod in list(self._pods.values()):
            pod.signal(signal.SIGKILL)
        self._ask("DELETE", f"/api/v1/nodes/{self._name}")

    def pod_of(self, job: str) -> Running:
        """The pod of a Job, once it runs here."""

        def running() -> list[Running]:
            with self._lock:
                pods = list(self._pods.values())
            return [pod for pod in pods if pod.manifest["metadata"]["labels"].get("job-name") == job and pod.processes]

        until(running, f"a running pod of {job}")
        return running()[0]

    def kill(self, job: str, reason: str = "OOMKilled") -> None:
        """Kill a Job's container: OOMKilled, or Evicted by its node."""
        pod = self.pod_of(job)
        pod.killed_for = reason
        pod.signal(signal.SIGKILL)
        assert pod.ended.wait(60)

    def rotate(self, job: str, keep: int) -> None:
        """The kubelet rotates the log: only the last lines can still be read."""
        with self._lock:
            for lines in self.pod_of(job).logs.values():
                del lines[:-keep]

    def log(self, pod_name: str, container: str, query: dict[str, str]) -> str | None:
        """A log as a kubelet gives it; None where no container of that name has run."""
        with self._lock:
            found = [pod.logs for pod in self._pods.values() if pod.name == pod_name and container in pod.logs]
            if not found:
                return None
            lines = list(found[0][container])
        since = datetime.fromisoformat(query["sinceTime"]).timestamp() * 1e9 if "sinceTime" in query else 0
        lines = [(stamp, line) for stamp, line in lines if stamp >= since]
        lines = lines[-int(query["tailLines"]) :] if "tailLines" in query else lines
        stamped = query.get("timestamps") == "true"
        return "".join(f"{_rfc3339(stamp)} {line}\n" if stamped else f"{line}\n" for stamp, line in lines)

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
                threading.Thread(target=self._end, args=(known,), daemon=True).start()
        elif not pod["spec"].get("nodeName"):
            self._schedule(pod)
        elif pod["spec"]["nodeName"] == self._name and known is None:
            running = Running(pod, self._directory / metadata["name"])
            with self._lock:
                self._pods[metadata["uid"]] = running
            threading.Thread(target=self._run, args=(running,), daemon=True).start()

    def _schedule(self, pod: Document) -> None:
        path = f"{self._of_pods}/{pod['metadata']['name']}"
        if self.full:
            refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            refused["message"] = "0/3 nodes are available: 3 Insufficient gpu."
            if not (pod.get("status") or {}).get("conditions"):
                self._ask("PATCH", f"{path}/status", {"status": {"conditions": [refused]}}, kind=MERGE)
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": self._name}
        self._ask("POST", f"{path}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target})

    def _run(self, pod: Running) -> None:
        """What a kubelet does: the init containers in turn, then those that stay, side by side."""
        spec = pod.manifest["spec"]
        for container in spec.get("initContainers", []):
            if self._run_container(pod, "initContainerStatuses", container) != 0 or pod.ending:
                pod.ended.set()
                return
        threads = [
            threading.Thread(target=self._run_container, args=(pod, "containerStatuses", container), daemon=True)
            for container in spec["containers"]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pod.ended.set()

    def _run_container(self, pod: Running, where: str, container: Document) -> int:
        if container["image"] in self.missing_images:
            message = f'Back-off pulling image "{container["image"]}"'
            self._tell(pod, where, container, {"waiting": {"reason": "ImagePullBackOff", "message": message}})
            return 1
        paths = self._paths(pod, container)
        program, *arguments = (_rewritten(text, paths) for text in container["command"])
        with self._lock:
            if pod.ending:
                return 1
            pod.logs[container["name"]] = []
            try:
                process = subprocess.Popen(
                    [self.programs.get(program, program), *arguments],
                    env={"PATH": os.environ["PATH"]} | self._environment(container),
                    cwd=_rewritten(container.get("workingDir", "/"), paths),
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                self._stopped(pod, where, container, {"reason": "StartError", "exitCode": 128, "message": str(error)})
                return 128
            pod.processes.append(process)
        self._tell(pod, where, container, {"running": {"startedAt": _now()}}, ready=not container.get("readinessProbe"))
        if "readinessProbe" in container:
            threading.Thread(target=self._await_ready, args=(pod, process, container), daemon=True).start()
        assert process.stdout
        for line in process.stdout:
            with self._lock:
                lines = pod.logs[container["name"]]
                stamp = max(time.time_ns(), lines[-1][0] if lines else 0)
                lines.append((stamp, line.decode(errors="replace").removesuffix("\n")))
        code = process.wait()
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if pod.killed_for == "OOMKilled" else "Error" if code else "Completed"
        self._stopped(pod, where, container, {"reason": reason, "exitCode": code})
        return code

    def _stopped(self, pod: Running, where: str, container: Document, terminated: Document) -> None:
        failed, again = terminated["exitCode"] != 0, pod.manifest["spec"]["restartPolicy"] == "Always"
        if failed and again and not pod.ending:
            waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
            self._tell(pod, where, container, {"waiting": waiting}, last={"terminated": terminated})
            return
        if where == "containerStatuses":
            pod.status["phase"] = "Failed" if failed else "Succeeded"
        if pod.killed_for == "Evicted":
            pod.status |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
        self._tell(pod, where, container, {"terminated": terminated})

    def _end(self, pod: Running) -> None:
        """Deletion: a time of grace, and then the word that nothing runs any more."""
        with self._lock:
            pod.signal(signal.SIGTERM)
        grace = pod.manifest["spec"].get("terminationGracePeriodSeconds", 30)
        deadline = time.monotonic() + min(grace, 15)
        while pod.running():
            if time.monotonic() > deadline:
                pod.signal(signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.manifest["metadata"]["uid"]}}
        self._ask("DELETE", f"{self._of_pods}/{pod.name}", options)
        with self._lock:
            self._pods.pop(pod.manifest["metadata"]["uid"], None)

    def _tell(
        self, pod: Running, where: str, container: Document, state: Document, *, last: Document | None = None,
        ready: bool = False,
    ) -> None:  # fmt: skip
        """Write the status, as far as a container's state and what follows from it."""
        status = {
            "name": container["name"], "image": container["image"], "imageID": f"{container['image']}@sha256:{0:064}",
            "ready": ready, "restartCount": int(bool(last)), "state": state, "lastState": last or {},
        }  # fmt: skip
        with self._lock:
            others = [one for one in pod.status.get(where, ()) if one["name"] != container["name"]]
            pod.status[where] = [*others, status]
            if "running" in state and where == "containerStatuses":
                pod.status["phase"] = "Running"
            told = pod.status.get("containerStatuses", ())
            all_ready = len(told) == len(pod.manifest["spec"]["containers"]) and all(one["ready"] for one in told)
            answer = {"status": str(all_ready), "lastTransitionTime": _now()}
            pod.status["conditions"] = [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()},
                *({"type": kind, **answer} for kind in ("Ready", "ContainersReady")),
            ]
            self._ask("PATCH", f"{self._of_pods}/{pod.name}/status", {"status": pod.status}, kind=MERGE)

    def _await_ready(self, pod: Running, process: subprocess.Popen[bytes], container: Document) -> None:
        probe = container["readinessProbe"]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        url = f"http://127.0.0.1:{ports.get(probe['port'], probe['port'])}{probe['path']}"
        while not (self._over.is_set() or pod.ending or process.poll() is not None):
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        state = {"running": {"startedAt": _now()}}
                        self._tell(pod, "containerStatuses", container, state, ready=True)
                        return
            except OSError:
                pass
            time.sleep(_POLL_SECONDS)

    def _paths(self, pod: Running, container: Document) -> dict[str, str]:
        """Directories that stand for a container's mounts, by where the container sees them."""
        volumes = {volume["name"]: volume for volume in pod.manifest["spec"]["volumes"]}
        found = {}
        for mount in container.get("volumeMounts", ()):
            path, volume = mount["mountPath"], volumes[mount["name"]]
            own = pod.directory / mount["name"]
            if "downwardAPI" in volume or ("emptyDir" in volume and path not in _OF_THE_MACHINE):
                own.mkdir(parents=True, exist_ok=True)
                found[path] = str(own)
            for item in volume.get("downwardAPI", {}).get("items", ()):
                key = re.fullmatch(r"metadata\.annotations\['(.+)'\]", item["fieldRef"]["fieldPath"])
                assert key, "this double has annotations only"
                (own / item["path"]).write_text(pod.manifest["metadata"]["annotations"][key[1]])
        return found

    def _environment(self, container: Document) -> dict[str, str]:
        given: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            secret = f"/api/v1/namespaces/{self._namespace}/secrets/{source['secretRef']['name']}"
            data = self._server.ask("GET", secret)["data"]
            given |= {name: base64.b64decode(value).decode() for name, value in data.items()}
        return given | {variable["name"]: variable.get("value", "") for variable in container.get("env", ())}


def _rewritten(text: str, paths: dict[str, str]) -> str:
    for path, own in paths.items():
        text = text.replace(path, own)
    return text


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _kubelet(node: Node) -> type[BaseHTTPRequestHandler]:
    class Kubelet(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            url = urlparse(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            match = _LOG.fullmatch(url.path)
            text = node.log(match["pod"], match["container"], query) if match else None
            data = b"the container is waiting to start" if text is None else text.encode()
            self.send_response(400 if text is None else 200)
            self.send_header("content-type", "text/plain")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Kubelet
