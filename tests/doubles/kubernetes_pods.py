"""What a kubelet does, for the doubles of Kubernetes: it really runs the containers of pods. Not Kubernetes.

Containers, init containers first, are processes of this machine with the container's environment only. Paths of
`emptyDir` and downward-API volumes are rewritten in commands, claims are at their own path, ports are the machine's.
A container that failed is not started again. Resources, users, security contexts and networks are not enforced.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Document = dict[str, Any]

UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient gpu.",
}
_IMAGE = re.compile(r"[a-z0-9._:/-]+(:[\w.-]+)?(@sha256:[0-9a-f]+)?")
_OF_THE_MACHINE = ("/tmp", "/dev/shm")  # noqa: S108 - paths inside containers
_GRACE_SECONDS, _GRACE_OF_JOBS_SECONDS = 15.0, 3.0
_POLL_SECONDS = 0.05


@dataclass
class Pod:
    """A pod, the processes of the containers that were started, and the logs of all of them."""

    object: Document
    directory: Path
    status: Document = field(default_factory=lambda: {"phase": "Pending", "podIP": "10.1.0.1"})
    logs: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed_for: str = ""
    ending: bool = False
    unreachable: bool = False
    told: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def job(self) -> str:
        return str(self.object["metadata"].get("labels", {}).get("job-name", ""))

    @property
    def ready(self) -> bool:
        told = self.status.get("containerStatuses", ())
        return len(told) == len(self.object["spec"]["containers"]) and all(one["ready"] for one in told)

    def signal(self, number: signal.Signals) -> None:
        for process in self.running():
            if not self.unreachable:
                os.killpg(process.pid, number)

    def running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes if process.poll() is None]


class Kubelet(ABC):
    """Runs pods.

    Attributes:
        programs: Programs of this machine that stand for those of the images, by their path there.
        missing_images: Images that cannot be pulled.
        full: No pod is taken.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pods: dict[str, Pod] = {}
        self._lock = threading.RLock()
        self.programs: dict[str, str] = {}
        self.missing_images: set[str] = set()
        self.full = False

    @abstractmethod
    def secret(self, name: str) -> dict[str, str]:
        """The keys and values of a Secret."""

    @abstractmethod
    def told(self, pod: Pod) -> None:
        """The status of a pod has changed."""

    def kill_all(self) -> None:
        for pod in list(self._pods.values()):
            pod.unreachable = False
            pod.signal(signal.SIGKILL)

    def pod_of(self, job: str) -> Pod:
        """The pod of a Job, once it runs here."""
        deadline = time.monotonic() + 60
        while True:
            with self._lock:
                running = [pod for pod in self._pods.values() if pod.job == job and pod.processes]
            if running:
                return running[0]
            assert time.monotonic() < deadline, f"no running pod of {job}"
            time.sleep(_POLL_SECONDS)

    def kill(self, job: str, reason: str = "OOMKilled") -> None:
        """Kill a Job's container: OOMKilled, or Evicted by its node."""
        pod = self.pod_of(job)
        pod.killed_for = reason
        pod.signal(signal.SIGKILL)
        assert pod.ended.wait(60)

    def rotate(self, job: str, keep: int) -> None:
        """The log is rotated: only the last lines can still be read."""
        with self._lock:
            for lines in self.pod_of(job).logs.values():
                del lines[:-keep]

    def log(self, pod_name: str, query: dict[str, str]) -> str | None:
        """A container's log as a kubelet gives it; None where it has not run."""
        with self._lock:
            logs = next((pod.logs for pod in self._pods.values() if pod.name == pod_name), {})
            lines = list(logs.get(query["container"], ()))
        if query["container"] not in logs:
            return None
        since = datetime.fromisoformat(query["sinceTime"]).timestamp() * 1e9 if "sinceTime" in query else 0
        lines = [(stamp, line) for stamp, line in lines if stamp >= since]
        lines = lines[-int(query["tailLines"]) :] if "tailLines" in query else lines
        stamped = query.get("timestamps") == "true"
        return "".join(f"{_rfc3339(stamp)} {line}\n" if stamped else f"{line}\n" for stamp, line in lines)

    def begin(self, key: str, pod: Pod) -> None:
        """Take a pod and run its containers."""
        with self._lock:
            self._pods[key] = pod
        threading.Thread(target=self._run, args=(pod,), daemon=True).start()

    def end(self, pod: Pod) -> None:
        """Stop a pod: a time of grace, and then the word that nothing runs any more."""
        with self._lock:
            pod.ending = True
            pod.told.set()
            pod.signal(signal.SIGTERM)
        deadline = time.monotonic() + (_GRACE_OF_JOBS_SECONDS if pod.job else _GRACE_SECONDS)
        while pod.running():
            if time.monotonic() > deadline:
                pod.signal(signal.SIGKILL)
            time.sleep(_POLL_SECONDS)

    def _run(self, pod: Pod) -> None:
        """The init containers in turn, then those that stay, side by side."""
        spec = pod.object["spec"]
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

    def _run_container(self, pod: Pod, where: str, container: Document) -> int:
        image = container["image"]
        if not _IMAGE.fullmatch(image) or image in self.missing_images:
            reason = "ImagePullBackOff" if image in self.missing_images else "InvalidImageName"
            self._tell(pod, where, container, {"waiting": {"reason": reason, "message": f'no image "{image}"'}})
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
        self._tell(pod, where, container, {"running": {"startedAt": now()}}, ready=not container.get("readinessProbe"))
        if "readinessProbe" in container:
            threading.Thread(target=self._await_ready, args=(pod, process, container), daemon=True).start()
        assert process.stdout
        for line in process.stdout:
            with self._lock:
                lines = pod.logs[container["name"]]
                stamp = max(time.time_ns(), lines[-1][0] + 1 if lines else 0)
                lines.append((stamp, line.decode(errors="replace").removesuffix("\n")))
        code = process.wait()
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if pod.killed_for == "OOMKilled" else "Error" if code else "Completed"
        self._stopped(pod, where, container, {"reason": reason, "exitCode": code})
        return code

    def _stopped(self, pod: Pod, where: str, container: Document, terminated: Document) -> None:
        failed = terminated["exitCode"] != 0
        if failed and not pod.ending and pod.object["spec"].get("restartPolicy", "Always") == "Always":
            waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
            self._tell(pod, where, container, {"waiting": waiting}, last={"terminated": terminated})
            return
        if where == "containerStatuses":
            pod.status["phase"] = "Failed" if failed else "Succeeded"
        if pod.killed_for == "Evicted":
            pod.status |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
        self._tell(pod, where, container, {"terminated": terminated})

    def _tell(
        self, pod: Pod, where: str, container: Document, state: Document, *, last: Document | None = None,
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
            answer = {"status": str(pod.ready), "lastTransitionTime": now()}
            pod.status["conditions"] = [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()},
                *({"type": kind, **answer} for kind in ("Ready", "ContainersReady")),
            ]
            self.told(pod)
            pod.told.set()

    def _await_ready(self, pod: Pod, process: subprocess.Popen[bytes], container: Document) -> None:
        probe = container["readinessProbe"]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        url = f"http://127.0.0.1:{ports.get(probe['port'], probe['port'])}{probe['path']}"
        while not pod.ending and process.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        self._tell(pod, "containerStatuses", container, {"running": {"startedAt": now()}}, ready=True)
                        return
            except OSError:
                pass
            time.sleep(_POLL_SECONDS)

    def _paths(self, pod: Pod, container: Document) -> dict[str, str]:
        """Directories that stand for a container's mounts, by where the container sees them."""
        volumes = {volume["name"]: volume for volume in pod.object["spec"]["volumes"]}
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
                (own / item["path"]).write_text(pod.object["metadata"]["annotations"][key[1]])
        return found

    def _environment(self, container: Document) -> dict[str, str]:
        given: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            given |= self.secret(source["secretRef"]["name"])
        return given | {variable["name"]: variable.get("value", "") for variable in container.get("env", ())}


def _rewritten(text: str, paths: dict[str, str]) -> str:
    for path, own in paths.items():
        text = text.replace(path, own)
    return text


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rfc3339(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:09d}Z"
