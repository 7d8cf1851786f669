"""A double of a Kubernetes API server that serves: Deployments of one pod, Services, pods and logs. Not Kubernetes.

It speaks HTTP, so the official client talks to it unchanged. It checks objects by the official client's generated
types (unknown fields are refused, as with `fieldValidation=Strict`), answers with 404 and 409, and really runs a pod's
init containers one after the other, and then its containers, as processes of this machine with their environment only.
Paths of `emptyDir` volumes are rewritten, claims are at their own path, ports are the machine's; a Service is kept and
routes nothing. A container that fails is not started again: its state is what a kubelet shows while it waits to.
Deletion is foreground deletion. Resources, security contexts, probes but for readiness, and schedulers are not there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from kubeconfig import write_kubeconfig
from kubernetes_api import Refused, _handler, _Server, check_schema

_PATH = re.compile(
    r"/(?:apis/apps/v1|api/v1)/namespaces/(?P<namespace>[^/]+)/(?P<kind>deployments|services|pods)"
    r"(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
_SCHEMAS = {"deployments": "V1Deployment", "services": "V1Service"}
_OF_THE_MACHINE = ("/tmp", "/dev/shm")  # noqa: S108 - paths inside containers
_GRACE_SECONDS = 15.0


@dataclass
class Pod:
    """A pod: the processes of its containers, and their logs."""

    object: dict[str, Any]
    directory: Path
    logs: dict[str, Path] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return self.object["metadata"]["name"]

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, number)


class ServingApi:
    """The double.

    Attributes:
        programs: Programs of this machine that stand for those of the images, by their path there.
        missing_images: Images that cannot be pulled.
        forbidden: Every call is refused with 403.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        self._objects: dict[str, dict[str, Any]] = {"deployments": {}, "services": {}}
        self._pods: dict[str, Pod] = {}
        self.programs: dict[str, str] = {}
        self.missing_images: set[str] = set()
        self.forbidden = False
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def kubeconfig(self) -> Path:
        """A kubeconfig whose only context is this server."""
        return write_kubeconfig(self._directory, self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for pod in list(self._pods.values()):
            pod.signal(signal.SIGKILL)

    def names(self) -> list[str]:
        return sorted([*(name for objects in self._objects.values() for name in objects), *self._pods])

    def object(self, kind: str, name: str) -> dict[str, Any]:
        return self._objects[kind][name]

    def respond(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """One call: status and body."""
        url = urlparse(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match = _PATH.fullmatch(url.path)
        if self.forbidden:
            raise Refused(403, "Forbidden", "deployments.apps is forbidden")
        if match is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        kind, name = match["kind"], match["name"]
        with self._lock:
            if match["log"]:
                return 200, self._log(name, query).encode()
            if method == "POST":
                return 201, json.dumps(self._create(kind, body or {}, match["namespace"])).encode()
            if kind == "pods":
                wanted = dict(part.split("=", 1) for part in filter(None, query.get("labelSelector", "").split(",")))
                pods = [
                    p.object for p in self._pods.values() if wanted.items() <= p.object["metadata"]["labels"].items()
                ]
                return 200, json.dumps({"kind": "PodList", "metadata": {}, "items": pods}).encode()
            if name not in self._objects[kind]:
                raise Refused(404, "NotFound", f'{kind} "{name}" not found')
            found = self._objects[kind][name]
            if method == "DELETE":
                self._delete(kind, name, body or {})
            elif kind == "deployments":
                found["status"] = {"readyReplicas": 1} if self._is_ready(found) else {}
            return 200, json.dumps(found).encode()

    def _create(self, kind: str, manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
        check_schema(manifest, _SCHEMAS[kind], "")
        name = manifest["metadata"]["name"]
        if manifest["metadata"].get("namespace") != namespace:
            raise Refused(400, "BadRequest", "the namespace of the object does not match the request")
        if name in self._objects[kind]:
            raise Refused(409, "AlreadyExists", f'{kind} "{name}" already exists')
        self._objects[kind][name] = manifest
        if kind == "deployments":
            if manifest["spec"].get("replicas") != 1:
                raise Refused(501, "NotImplemented", "this double runs one pod")
            self._start(name, manifest["spec"]["template"])
        return manifest

    def _start(self, deployment: str, template: dict[str, Any]) -> None:
        pod_name = f"{deployment}-0"
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {**template["metadata"], "name": pod_name, "creationTimestamp": created}
        pod = Pod(
            {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}, self._directory / pod_name
        )
        self._pods[pod_name] = pod
        threading.Thread(target=self._run, args=(pod,), daemon=True).start()

    def _run(self, pod: Pod) -> None:
        """What a kubelet does: the init containers in turn, then the server with those beside it."""
        spec = pod.object["spec"]
        server, *others = spec["containers"]
        for statuses, containers in (
            ("initContainerStatuses", spec["initContainers"]),
            ("containerStatuses", [server]),
        ):
            for container in containers:
                if container["image"] in self.missing_images:
                    message = f'Back-off pulling image "{container["image"]}"'
                    return self._tell(
                        pod, statuses, container, {"waiting": {"reason": "ImagePullBackOff", "message": message}}
                    )
                if container is server:
                    for other in others:
                        beside = (pod, statuses, other)
                        threading.Thread(target=self._run_container, args=beside, daemon=True).start()
                if self._run_container(pod, statuses, container) != 0 or "deletionTimestamp" in pod.object["metadata"]:
                    pod.ended.set()
                    return None
        return None

    def _run_container(self, pod: Pod, statuses: str, container: dict[str, Any]) -> int:
        log = pod.logs[container["name"]] = pod.directory / f"{container['name']}.log"
        directories = self._volumes(pod, container)
        rewrite = lambda text: self._rewritten(text, directories)  # noqa: E731
        program, *arguments = map(rewrite, container["command"])
        environment = {variable["name"]: variable["value"] for variable in container.get("env", ())}
        with log.open("wb") as output, self._lock:
            if "deletionTimestamp" in pod.object["metadata"]:
                return 1
            process = subprocess.Popen(
                [self.programs.get(program, program), *arguments],
                env={"PATH": os.environ["PATH"]} | environment,
                cwd=rewrite(container.get("workingDir", "/")),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            pod.processes.append(process)
            self._tell(
                pod, statuses, container, {"running": {"startedAt": pod.object["metadata"]["creationTimestamp"]}}
            )
        code = process.wait()
        ended = {
            "terminated": {"reason": "Error" if code else "Completed", "exitCode": code if code >= 0 else 128 - code}
        }
        backing_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
        self._tell(pod, statuses, container, backing_off if code else ended, ended if code else {})
        return code

    def _volumes(self, pod: Pod, container: dict[str, Any]) -> dict[str, str]:
        """Directories that stand for a container's mounts, by where the container sees them."""
        volumes = {volume["name"]: volume for volume in pod.object["spec"]["volumes"]}
        found = {}
        for mount in container.get("volumeMounts", ()):
            path = mount["mountPath"]
            if "emptyDir" in volumes[mount["name"]] and path not in _OF_THE_MACHINE:
                found[path] = str(pod.directory / mount["name"])
                Path(found[path]).mkdir(parents=True, exist_ok=True)
            elif not Path(path).exists():
                raise AssertionError(f"this double has claims at their own path only: {path}")
        return found

    def _rewritten(self, text: str, directories: dict[str, str]) -> str:
        for path, directory in directories.items():
            text = text.replace(path, directory)
        return text

    def _tell(
        self,
        pod: Pod,
        statuses: str,
        container: dict[str, Any],
        state: dict[str, Any],
        last: dict[str, Any] | None = None,
    ) -> None:
        status = {
            "name": container["name"], "image": container["image"], "imageID": "", "ready": False,
            "restartCount": int(bool(last)), "state": state, "lastState": last or {},
        }  # fmt: skip
        with self._lock:
            others = [one for one in pod.object["status"].get(statuses, ()) if one["name"] != container["name"]]
            pod.object["status"] |= {
                "phase": "Running" if "running" in state else "Pending",
                statuses: [*others, status],
            }

    def _is_ready(self, deployment: dict[str, Any]) -> bool:
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        probe = container["readinessProbe"]["httpGet"]
        port = next(port["containerPort"] for port in container["ports"] if port["name"] == probe["port"])
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{probe['path']}", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _log(self, pod: str, query: dict[str, str]) -> str:
        """A failed container is not started again here, so its log is the one of the run before."""
        found = self._pods.get(pod)
        if found is None or query["container"] not in found.logs:
            raise Refused(404, "NotFound", f'pods "{pod}" not found')
        lines = found.logs[query["container"]].read_text(errors="replace").splitlines(keepends=True)
        return "".join(lines[-int(query["tailLines"]) :])

    def _delete(self, kind: str, name: str, options: dict[str, Any]) -> None:
        if options.get("propagationPolicy") != "Foreground":
            raise Refused(400, "BadRequest", "this double knows foreground deletion only")
        if kind == "services":
            del self._objects[kind][name]
            return
        self._objects[kind][name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        for pod in [pod for pod in self._pods.values() if pod.name == f"{name}-0"]:
            pod.object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        threading.Thread(target=self._end, args=(name,), daemon=True).start()

    def _end(self, name: str) -> None:
        pod = self._pods.get(f"{name}-0")
        if pod:
            pod.signal(signal.SIGTERM)
            try:
                for process in pod.processes:
                    process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                pod.signal(signal.SIGKILL)
        with self._lock:
            self._pods.pop(f"{name}-0", None)
            self._objects["deployments"].pop(name, None)
