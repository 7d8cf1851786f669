"""A double of a Kubernetes API server with controllers of Jobs and Deployments, and a node. Not Kubernetes.

It speaks HTTP, so the official client talks to it unchanged, and holds to what is documented: objects are checked by
Kubernetes' own schemas (unknown fields are refused, as with `fieldValidation=Strict`), 404 and 409, conditions and
reasons, deletion by owner, time-stamped logs. Pods really run (`kubernetes_pods.py`), a Deployment has one; a Service
is kept and routes nothing. There is no watch, and the one deletion that is known is foreground deletion.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import kubernetes_validate
from faulty_api import Document, FaultyApi, Refused, selected
from kubernetes_pods import UNSCHEDULABLE, Kubelet, Pod

_PATH = re.compile(
    r"/(?:api/v1|apis/(?:apps|batch)/v1)/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<kind>jobs|pods|events|deployments|services)(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
_VERSION = "1.37"
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_FOREGROUND = {"propagationPolicy": "Foreground"}


class KubernetesApi(FaultyApi, Kubelet):
    """The double. Attributes and methods below say what should go wrong.

    Attributes:
        quota_used_up: No pod is created.
        age: How long ago objects seem to be created.
        secrets: Keys and values by name of the secret.
    """

    def __init__(self, directory: Path) -> None:
        self._objects: dict[str, dict[str, Document]] = {"jobs": {}, "deployments": {}, "services": {}}
        self.quota_used_up = False
        self.age = timedelta()
        self.secrets: dict[str, dict[str, str]] = {}
        Kubelet.__init__(self, directory)
        FaultyApi.__init__(self, directory)

    def close(self) -> None:
        super().close()
        self.kill_all()

    def secret(self, name: str) -> dict[str, str]:
        return self.secrets[name]

    def object(self, kind: str, name: str) -> Document:
        return self._objects[kind][name]

    def job(self, name: str) -> Document:
        return self.object("jobs", name)

    def names(self) -> list[str]:
        """What there is beside pods."""
        return sorted(name for objects in self._objects.values() for name in objects)

    def lose_node(self, job: str) -> None:
        """The node is gone, and its pod was collected."""
        self._lose_pod(job, "BackoffLimitExceeded", "Job has reached the specified backoff limit")

    def run_out_of_time(self, job: str) -> None:
        """The Job was active for longer than its deadline: its pod is removed."""
        self._lose_pod(job, "DeadlineExceeded", "Job was active longer than specified deadline")

    def isolate_node(self, job: str) -> None:
        """The node does not answer any more: its pod was deleted ten minutes ago, and nobody knows whether it ended."""
        pod = self.pod_of(job)
        with self._lock:
            pod.unreachable = True
            pod.object["metadata"]["deletionTimestamp"] = _stamp(timedelta(minutes=10))
            self.job(job)["status"]["ready"] = 0

    def delete_behind(self, job: str) -> None:
        """Somebody else deletes the Job, at once with its pod."""
        with self._lock:
            del self._objects["jobs"][job]
            pods = [self._pods.pop(name) for name, pod in [*self._pods.items()] if pod.job == job]
        for pod in pods:
            pod.signal(signal.SIGKILL)

    def told(self, pod: Pod) -> None:
        """What the controllers do when a pod has changed."""
        pod.object["status"] = pod.status
        if pod.name not in self._pods:  # lost: the controller has had its word about it
            return
        deployment = self._objects["deployments"].get(pod.name.removesuffix("-0"))
        if deployment:
            deployment["status"] = {"readyReplicas": 1} if pod.ready else {}
        job = self._objects["jobs"].get(pod.job)
        if job and pod.status["phase"] == "Running":
            job["status"]["ready"] = 1
        elif job and pod.status["phase"] == "Succeeded":
            job["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
        elif job and pod.status["phase"] == "Failed":
            _fail(job, "BackoffLimitExceeded", "Job has reached the specified backoff limit")

    def perform(self, method: str, target: str, body: Document | None) -> tuple[int, bytes]:
        url = urlparse(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match = _PATH.fullmatch(url.path)
        if match is None or "watch" in query:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        kind, name = match["kind"], match["name"]
        with self._lock:
            if match["log"]:
                text = self.log(name, query)
                if text is None:
                    raise Refused(400, "BadRequest", f'container in pod "{name}" is waiting to start')
                return 200, text.encode()
            if method != "POST":
                return 200, json.dumps(self._answer(method, kind, name, query, body)).encode()
            created = json.dumps(self._create(kind, body or {})).encode()
        for pod in [*self._pods.values()]:
            pod.told.wait(10)
        return 201, created

    def _answer(self, method: str, kind: str, name: str | None, query: dict[str, str], body: Any) -> Document:
        objects = self._objects.get(kind, {})
        if kind == "pods":
            objects = {pod.name: pod.object for pod in self._pods.values()}
        if kind == "events" and self.quota_used_up:
            event = {"reason": "FailedCreate", "message": "exceeded quota: gpus", "involvedObject": {}}
            objects = {"event": {"metadata": {"name": "event"}, **event}}
        if name is None:
            found = [one for one in objects.values() if selected(one, query.get("labelSelector", ""))]
            return {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": found}
        if name not in objects:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        if method == "DELETE":
            self._delete(kind, name, body)
        return objects[name]

    def _create(self, kind: str, manifest: Document) -> Document:
        check(manifest)
        metadata = manifest["metadata"]
        if metadata["name"] in self._objects[kind]:
            raise Refused(409, "AlreadyExists", f'{kind} "{metadata["name"]}" already exists')
        metadata["creationTimestamp"] = _stamp(self.age)
        manifest["status"] = {"active": 1, "ready": 0} if kind == "jobs" else {}
        self._objects[kind][metadata["name"]] = manifest
        if kind == "jobs" and not self.quota_used_up:
            self._start(manifest, f"{metadata['name']}-{uuid.uuid4().hex[:5]}", {"job-name": metadata["name"]})
        elif kind == "deployments":
            self._start(manifest, f"{metadata['name']}-0", {})
        return manifest

    def _start(self, workload: Document, name: str, labels: dict[str, str]) -> None:
        template = workload["spec"]["template"]
        metadata = {**template["metadata"], "name": name, "creationTimestamp": _stamp(self.age)}
        metadata["labels"] = metadata.get("labels", {}) | labels
        pod = Pod({"metadata": metadata, "spec": dict(template["spec"])}, self._directory / name)
        pod.object["status"] = pod.status
        if self.full:
            self._pods[name] = pod
            pod.status["conditions"] = [UNSCHEDULABLE]
            pod.told.set()
            return
        pod.object["spec"]["nodeName"] = "node-1"
        self.begin(name, pod)

    def _lose_pod(self, job: str, reason: str, message: str) -> None:
        pod = self.pod_of(job)
        with self._lock:
            del self._pods[pod.name]
            _fail(self.job(job), reason, message)
        pod.signal(signal.SIGKILL)

    def _delete(self, kind: str, name: str, options: Document | None) -> None:
        if options != _FOREGROUND:
            raise Refused(400, "BadRequest", "this double knows Foreground only: the default leaves the pods of a Job")
        if kind == "services":
            del self._objects[kind][name]
            return
        pods = [pod for pod in self._pods.values() if name in (pod.job, pod.name.removesuffix("-0"))]
        for document in (self.object(kind, name), *(pod.object for pod in pods)):
            document["metadata"]["deletionTimestamp"] = _stamp()
        threading.Thread(target=self._collect, args=(kind, name, pods), daemon=True).start()

    def _collect(self, kind: str, name: str, pods: list[Pod]) -> None:
        for pod in pods:
            self.end(pod)
        with self._lock:
            for pod in pods:
                self._pods.pop(pod.name, None)
            self._objects[kind].pop(name, None)


def check(manifest: Document) -> None:
    """What the API server checks of an object that is created, as far as a schema can say it, and names and labels.

    Raises:
        Refused: Something is wrong.
    """
    try:
        kubernetes_validate.validate(manifest, _VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Refused(422, "Invalid", f"{'.'.join(map(str, error.path))}: {error.message}") from error
    if not _DNS_LABEL.fullmatch(manifest["metadata"]["name"]):  # a Job's name becomes a label of its pods
        raise Refused(422, "Invalid", f"metadata.name: {manifest['metadata']['name']}")
    for where in (manifest["metadata"], manifest["spec"].get("template", {}).get("metadata", {})):
        for name, value in where.get("labels", {}).items():
            if not _LABEL_VALUE.fullmatch(value):
                raise Refused(422, "Invalid", f"metadata.labels: {name}={value}")


def _fail(job: Document, reason: str, message: str) -> None:
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": message}
    job["status"] = {"failed": 1, "conditions": [condition]}


def _stamp(ago: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
