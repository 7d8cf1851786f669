"""A double of a Kubernetes API server with a Job controller, a scheduler and a kubelet behind it. Not Kubernetes.

It speaks HTTP, so the official client talks to it unchanged, and it holds to what is documented: the schema of a Job
(by the official client's generated types; unknown fields are refused, as with `fieldValidation=Strict`), names and
labels, 404 and 409, conditions and reasons, deletion by owner, time-stamped logs. A pod's command really runs, as a
process of this machine with the pod's environment only; paths of mounted volumes in its arguments are rewritten,
other paths are the machine's. Resources, security contexts and network are checked for their form, not enforced.
There is no watch: the runner uses none, and asking for one is refused.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from kubeconfig import write_kubeconfig
from kubernetes import client

JOB_NAME = "batch.kubernetes.io/job-name"
_PATH = re.compile(
    r"/(?:api/v1|apis/batch/v1)/namespaces/(?P<namespace>[^/]+)/(?P<kind>jobs|pods|events)"
    r"(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_IMAGE = re.compile(r"[a-z0-9._:/-]+(:[\w.-]+)?(@sha256:[0-9a-f]+)?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float)}
_GRACE_SECONDS = 3.0


class Refused(Exception):
    """An answer that is a `Status`."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


@dataclass
class Pod:
    """A pod and the process that stands for its container."""

    object: dict[str, Any]
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    log: list[tuple[int, str]] = field(default_factory=list)
    killed_for: str = ""
    unreachable: bool = False

    @property
    def name(self) -> str:
        return self.object["metadata"]["name"]

    def signal(self, number: signal.Signals) -> None:
        if self.unreachable:
            return
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, number)


class KubernetesApi:
    """The double. Attributes and methods below say what should go wrong.

    Attributes:
        missing_images: Images that cannot be pulled.
        full: No node takes a pod.
        quota_used_up: No pod is created.
        age: How long ago Jobs seem to be created.
        secrets: Keys and values by name of the secret.
        calls: What was asked, e.g. `POST jobs`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        self._version = 100
        self._jobs: dict[str, dict[str, Any]] = {}
        self._pods: dict[str, Pod] = {}
        self._faults: list[tuple[str, int]] = []
        self.missing_images: set[str] = set()
        self.full = self.quota_used_up = False
        self.age = timedelta()
        self.secrets: dict[str, dict[str, str]] = {}
        self.calls: list[str] = []
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def kubeconfig(self, context: str = "test") -> Path:
        """A kubeconfig whose only context is this server."""
        return write_kubeconfig(self._directory, self._server.server_port, context)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for pod in list(self._pods.values()):
            pod.unreachable = False
            pod.signal(signal.SIGKILL)

    def answer(self, status: int, *, times: int, to: str = "") -> None:
        """Answer the next calls with an error; 0 breaks the connection off in the middle of the answer."""
        self._faults += [(to, status)] * times

    def kill(self, job: str, reason: str = "OOMKilled") -> None:
        """Kill a Job's container: OOMKilled, or Evicted by its node."""
        pod = self._pod_of(job)
        pod.killed_for = reason
        pod.signal(signal.SIGKILL)
        self._until(lambda: "terminated" in pod.object["status"]["containerStatuses"][0]["state"])

    def lose_node(self, job: str) -> None:
        """The node is gone, and its pod was collected."""
        self._lose_pod(job, "BackoffLimitExceeded", "Job has reached the specified backoff limit")

    def isolate_node(self, job: str) -> None:
        """The node does not answer any more: its pod was deleted ten minutes ago, and nobody knows whether it ended."""
        pod = self._pod_of(job)
        long_ago = (datetime.now(UTC) - timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._lock:
            pod.object["metadata"]["deletionTimestamp"] = long_ago
            self._jobs[job]["status"]["ready"] = 0
            pod.unreachable = True

    def run_out_of_time(self, job: str) -> None:
        """The Job was active for longer than its deadline: its pod is removed."""
        self._lose_pod(job, "DeadlineExceeded", "Job was active longer than specified deadline")

    def _lose_pod(self, job: str, reason: str, message: str) -> None:
        with self._lock:
            pod = self._pods.pop(self._pod_of(job).name)
        pod.signal(signal.SIGKILL)
        pod.process.wait()
        self._fail(job, reason, message)

    def delete_behind(self, job: str, *, orphan: bool = False) -> None:
        """Somebody else deletes the Job: at once with its pod, or leaving it behind."""
        with self._lock:
            del self._jobs[job]
            pods = [] if orphan else [self._pods.pop(pod.name) for pod in self._of(job)]
        for pod in pods:
            pod.signal(signal.SIGKILL)

    def rotate(self, job: str, keep: int) -> None:
        """The kubelet rotates the log: only the last lines can still be read."""
        pod = self._pod_of(job)
        with self._lock:
            del pod.log[:-keep]

    def job(self, name: str) -> dict[str, Any]:
        return self._jobs[name]

    def names(self) -> list[str]:
        return sorted(self._jobs)

    def respond(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """One call: status and body."""
        url = urlparse(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match = _PATH.fullmatch(url.path)
        if match is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        kind = "log" if match["log"] else match["kind"]
        self.calls.append(f"{method} {kind}")
        if "watch" in query:
            raise Refused(400, "BadRequest", "this double has no watch")
        with self._lock:
            for fault in self._faults:
                if fault[0] in f"{method} {kind}":
                    self._faults.remove(fault)
                    if fault[1]:
                        raise Refused(fault[1], "Injected", "the test asked for it")
                    return 0, self._answer(method, kind, match, query, body)[1]
            return self._answer(method, kind, match, query, body)

    def _answer(self, method: str, kind: str, match: Any, query: dict[str, str], body: Any) -> tuple[int, bytes]:
        name = match["name"]
        if kind == "log":
            return 200, self._log(name, query).encode()
        if (method, kind) == ("POST", "jobs"):
            return 201, json.dumps(self._create(body, match["namespace"])).encode()
        if kind == "events":
            events = [{"reason": "FailedCreate", "message": "exceeded quota: gpus"}] if self.quota_used_up else []
            return 200, _list("Event", [self._event(event) for event in events])
        objects = self._jobs if kind == "jobs" else {pod.name: pod.object for pod in self._pods.values()}
        if name is None:
            return 200, _list(kind, [o for o in objects.values() if _selected(o, query.get("labelSelector", ""))])
        if name not in objects:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        if method == "DELETE":
            self._delete(kind, name, query, body or {})
        elif method != "GET":
            raise Refused(405, "MethodNotAllowed", "this double knows no updates")
        return 200, json.dumps(objects[name]).encode()

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        return event | {"metadata": {"name": "e"}, "involvedObject": {}}

    def _create(self, manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
        check_job(manifest)
        name = manifest["metadata"]["name"]
        if name in self._jobs:
            raise Refused(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        self._version += 1
        created = (datetime.now(UTC) - self.age).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest["metadata"] |= {
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": created,
            "resourceVersion": str(self._version),
        }
        manifest["status"] = {"active": 1, "ready": 0}
        self._jobs[name] = manifest
        if not self.quota_used_up:
            self._start(name, manifest)
        return manifest

    def _start(self, job: str, manifest: dict[str, Any]) -> None:
        template = manifest["spec"]["template"]
        pod_name = f"{job}-{uuid.uuid4().hex[:5]}"
        metadata = template["metadata"] | {
            "name": pod_name,
            "creationTimestamp": manifest["metadata"]["creationTimestamp"],
        }
        metadata["labels"] = metadata.get("labels", {}) | {JOB_NAME: job}
        spec = template["spec"]
        container = spec["containers"][0]
        pod = Pod(
            {"metadata": metadata, "spec": dict(spec), "status": {"phase": "Pending"}}, self._directory / pod_name
        )
        self._pods[pod_name] = pod
        if self.full:
            refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod.object["status"]["conditions"] = [refused | {"message": "0/3 nodes are available: 3 Insufficient gpu."}]
            return
        pod.object["spec"]["nodeName"] = "node-1"
        if not _IMAGE.fullmatch(container["image"]):
            message = f'Failed to apply default image tag "{container["image"]}": invalid reference format'
            self._container(pod, {"waiting": {"reason": "InvalidImageName", "message": message}})
            return
        if container["image"] in self.missing_images:
            message = f'Back-off pulling image "{container["image"]}"'
            self._container(pod, {"waiting": {"reason": "ImagePullBackOff", "message": message}})
            return
        try:
            pod.process = subprocess.Popen(
                self._arguments(pod),
                env=self._environment(container),
                cwd="/",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._container(pod, {"terminated": {"reason": "StartError", "exitCode": 128, "message": str(error)}})
            self._end(pod, job, 128)
            return
        self._container(pod, {"running": {"startedAt": metadata["creationTimestamp"]}}, phase="Running")
        manifest["status"]["ready"] = 1
        threading.Thread(target=self._follow, args=(pod, job), daemon=True).start()

    def _arguments(self, pod: Pod) -> list[str]:
        """The command, with files of downward-API volumes where this machine can read them."""
        spec, paths = pod.object["spec"], {}
        for volume in spec["volumes"]:
            for item in volume.get("downwardAPI", {}).get("items", ()):
                key = re.fullmatch(r"metadata\.annotations\['(.+)'\]", item["fieldRef"]["fieldPath"])[1]
                file = pod.directory / volume["name"] / item["path"]
                file.parent.mkdir(parents=True)
                file.write_text(pod.object["metadata"]["annotations"][key])
                mount = next(m for m in spec["containers"][0]["volumeMounts"] if m["name"] == volume["name"])
                paths[f"{mount['mountPath']}/{item['path']}"] = str(file)
        return [paths.get(argument, argument) for argument in spec["containers"][0]["command"]]

    def _environment(self, container: dict[str, Any]) -> dict[str, str]:
        given = {variable["name"]: variable["value"] for variable in container.get("env", ())}
        for source in container.get("envFrom", ()):
            given = self.secrets[source["secretRef"]["name"]] | given
        return {"PATH": os.environ["PATH"]} | given

    def _follow(self, pod: Pod, job: str) -> None:
        """What the kubelet and the Job controller do while a container runs, and when it ends."""
        for line in pod.process.stdout:
            with self._lock:
                last = pod.log[-1][0] if pod.log else 0
                pod.log.append((max(time.time_ns(), last), line.decode(errors="replace").removesuffix("\n")))
        code = pod.process.wait()
        with self._lock:
            exit_code = 128 - code if code < 0 else code
            reason = "OOMKilled" if pod.killed_for == "OOMKilled" else "Completed" if exit_code == 0 else "Error"
            self._container(pod, {"terminated": {"reason": reason, "exitCode": exit_code}})
            if pod.killed_for == "Evicted":
                pod.object["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
            self._end(pod, job, exit_code)

    def _end(self, pod: Pod, job: str, exit_code: int) -> None:
        pod.object["status"]["phase"] = "Failed" if exit_code else "Succeeded"
        if pod.name not in self._pods:  # lost: the controller has its own word about it
            return
        if "deletionTimestamp" in pod.object["metadata"]:
            self._pods.pop(pod.name, None)
            if "deletionTimestamp" in self._jobs.get(job, {"metadata": {}})["metadata"]:
                del self._jobs[job]
        elif exit_code:
            self._fail(job, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif job in self._jobs:
            self._jobs[job]["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}

    def _fail(self, job: str, reason: str, message: str) -> None:
        with self._lock:
            condition = {"type": "Failed", "status": "True", "reason": reason, "message": message}
            if job in self._jobs:
                self._jobs[job]["status"] = {"failed": 1, "conditions": [condition]}

    def _container(self, pod: Pod, state: dict[str, Any], phase: str = "Pending") -> None:
        image = pod.object["spec"]["containers"][0]["image"]
        status = {"name": "stage", "image": image, "imageID": f"{image}@sha256:{'0' * 64}", "ready": "running" in state}
        pod.object["status"] |= {"phase": phase, "containerStatuses": [status | {"restartCount": 0, "state": state}]}

    def _delete(self, kind: str, name: str, query: dict[str, str], options: dict[str, Any]) -> None:
        policy = query.get("propagationPolicy") or options.get("propagationPolicy")
        if kind == "jobs" and policy != "Foreground":
            raise Refused(400, "BadRequest", "this double knows Foreground only: the default leaves the pods of a Job")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pods = self._of(name) if kind == "jobs" else [self._pods[name]]
        if kind == "jobs":
            self._jobs[name]["metadata"]["deletionTimestamp"] = now
        for pod in pods:
            pod.object["metadata"]["deletionTimestamp"] = now
            pod.signal(signal.SIGTERM)
            threading.Timer(_GRACE_SECONDS, pod.signal, [signal.SIGKILL]).start()
        if all(pod.process is None or pod.process.poll() is not None for pod in pods):
            threading.Timer(0.05, self._collect, [name, pods]).start()

    def _collect(self, name: str, pods: list[Pod]) -> None:
        with self._lock:
            self._jobs.pop(name, None)
            for pod in pods:
                self._pods.pop(pod.name, None)

    def _log(self, pod_name: str, query: dict[str, str]) -> str:
        if pod_name not in self._pods:
            raise Refused(404, "NotFound", f'pods "{pod_name}" not found')
        pod = self._pods[pod_name]
        if query.get("container", "stage") != "stage":
            raise Refused(400, "BadRequest", f"container {query['container']} is not valid for pod {pod_name}")
        if pod.process is None:
            raise Refused(400, "BadRequest", f'container "stage" in pod "{pod_name}" is waiting to start')
        since = datetime.fromisoformat(query["sinceTime"]).timestamp() * 1e9 if "sinceTime" in query else 0
        lines = [(stamp, line) for stamp, line in pod.log if stamp >= since]
        lines = lines[-int(query["tailLines"]) :] if "tailLines" in query else lines
        stamped = query.get("timestamps") == "true"
        return "".join(f"{_rfc3339(stamp)} {line}\n" if stamped else f"{line}\n" for stamp, line in lines)

    def _of(self, job: str) -> list[Pod]:
        return [pod for pod in self._pods.values() if pod.object["metadata"]["labels"][JOB_NAME] == job]

    def _pod_of(self, job: str) -> Pod:
        with self._lock:
            return self._of(job)[0]

    def _until(self, true: Any) -> None:
        deadline = time.monotonic() + 60
        while not true():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def check_job(manifest: dict[str, Any]) -> None:
    """What the API server checks of a Job that is created.

    Raises:
        Refused: With 400 for an unknown field, 422 for a value.
    """
    check_schema(manifest, "V1Job", "")
    metadata, spec = manifest["metadata"], manifest["spec"]
    if not _DNS_LABEL.fullmatch(metadata["name"]):  # a Job's name becomes a label of its pods
        raise _invalid("metadata.name", metadata["name"])
    for where in (metadata, spec["template"]["metadata"]):
        for name, value in where.get("labels", {}).items():
            if not (_LABEL_NAME.fullmatch(name) and _LABEL_VALUE.fullmatch(value)):
                raise _invalid("metadata.labels", f"{name}={value}")
        annotations = where.get("annotations", {})
        if not all(_LABEL_NAME.fullmatch(name) for name in annotations):
            raise _invalid("metadata.annotations", str(list(annotations)))
        if sum(len(name) + len(value) for name, value in annotations.items()) > 256 * 1024:
            raise _invalid("metadata.annotations", "Too long: may not be more than 262144 bytes")
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        raise _invalid("spec.template.spec.restartPolicy", pod.get("restartPolicy"))
    volumes = [volume["name"] for volume in pod.get("volumes", ())]
    if len(set(volumes)) != len(volumes) or not all(_DNS_LABEL.fullmatch(name) for name in volumes):
        raise _invalid("spec.template.spec.volumes", volumes)
    for container in pod["containers"]:
        _check_container(container, volumes)


def _check_container(container: dict[str, Any], volumes: list[str]) -> None:
    if not container.get("image"):
        raise _invalid("containers.image", container.get("image"))
    mounts = container.get("volumeMounts", ())
    paths = [mount["mountPath"] for mount in mounts]
    if len(set(paths)) != len(paths) or not all(mount["name"] in volumes for mount in mounts):
        raise _invalid("volumeMounts", mounts)
    resources = container.get("resources", {})
    for quantities in resources.values():
        for name, quantity in quantities.items():
            if not _QUANTITY.fullmatch(quantity):
                raise _invalid(f"resources.{name}", quantity)
    for name, requested in resources.get("requests", {}).items():
        if "/" in name and resources.get("limits", {}).get(name) != requested:
            raise _invalid(f"resources.requests.{name}", "must be equal to the limit")


def check_schema(value: Any, kind: str, path: str) -> None:
    """Check a value against a type of the official client's generated schema."""
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        _expect(value, list, path)
        for number, item in enumerate(value):
            check_schema(item, found[1], f"{path}[{number}]")
    elif found := re.fullmatch(r"dict[(\[]str, (.+)[)\]]", kind):
        _expect(value, dict, path)
        for name, item in value.items():
            check_schema(item, found[1], f"{path}.{name}")
    elif kind in _PLAIN:
        _expect(value, _PLAIN[kind], path)
    elif kind.startswith("V1"):
        _expect(value, dict, path)
        model = getattr(client, kind)
        names = {json_name: name for name, json_name in model.attribute_map.items()}
        for name, item in value.items():
            if name not in names:
                raise Refused(400, "BadRequest", f'strict decoding error: unknown field "{path}.{name}"'.lstrip("."))
            check_schema(item, model.openapi_types[names[name]], f"{path}.{name}")
        try:
            model(**{names[name]: item for name, item in value.items()})
        except ValueError as error:
            raise _invalid(path, str(error)) from error


def _expect(value: Any, kind: Any, path: str) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Refused(400, "BadRequest", f"json: cannot unmarshal {type(value).__name__} into field {path}")


def _invalid(where: str, value: Any) -> Refused:
    return Refused(422, "Invalid", f"Job is invalid: {where}: Invalid value: {value}")


def _selected(thing: dict[str, Any], selector: str) -> bool:
    wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
    return wanted.items() <= thing["metadata"].get("labels", {}).items()


def _list(kind: str, items: list[dict[str, Any]]) -> bytes:
    return json.dumps({"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": items}).encode()


def _rfc3339(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:09d}Z"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that hung up
            super().handle_error(request, client_address)


def _handler(api: KubernetesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            try:
                status, data = api.respond(self.command, self.path, body)
            except Refused as refused:
                status = refused.code
                document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
                data = json.dumps(document | {"reason": refused.reason, "message": refused.message}).encode()
            self.send_response(status or 200)
            self.send_header("content-type", "application/json" if data.startswith(b"{") else "text/plain")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data if status else data[: len(data) // 2])
            self.close_connection = self.close_connection or not status

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = answer  # noqa: N815

    return Handler


def serve(directory: Path | None = None) -> KubernetesApi:
    """A new, empty cluster."""
    return KubernetesApi(directory or Path(tempfile.mkdtemp()))
