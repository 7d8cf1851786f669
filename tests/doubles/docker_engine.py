"""A double of the Docker Engine's HTTP API on a unix socket. Not Docker: nothing is contained.

The Docker SDK talks to it unchanged. It answers with 404 and 409 where the engine does, and really runs a container's
command, as a process of this machine with the container's environment only. Mounts must exist and be at their own path;
modes, limits, capabilities and users are recorded for tests to read, not enforced.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from faulty_api import Patient, Refused, handler

IMAGE, DIGEST = "registry.test/llm/model:1", f"sha256:{'0' * 63}7"
_CONTAINER = re.compile(r"/containers/(?P<name>[^/]+)(?:/(?P<action>json|start|stop|kill|logs))?")
_IMAGE = re.compile(r"/images/(?P<name>.+)/json")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_NETWORKS = ("bridge", "host", "none")


@dataclass
class Container:
    """A container and the process that stands for it."""

    id: str
    name: str
    options: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    output: Path | None = None
    out_of_memory: bool = False

    @property
    def status(self) -> str:
        if self.process is None:
            return "created"
        return "running" if self.process.poll() is None else "exited"

    def signal(self, number: signal.Signals) -> None:
        if self.status == "running":
            os.killpg(self.process.pid, number)

    def inspected(self) -> dict[str, Any]:
        code = self.process.poll() if self.process else 0
        exit_code = 0 if code is None else 128 - code if code < 0 else code
        state = {"Status": self.status, "OOMKilled": self.out_of_memory, "ExitCode": exit_code, "Error": ""}
        config = {"Labels": self.options["Labels"], "Tty": False, "Image": self.options["Image"]}
        host = self.options["HostConfig"]
        return {"Id": self.id, "Name": f"/{self.name}", "State": state, "Config": config, "HostConfig": host}


class DockerEngine:
    """The double.

    Attributes:
        socket: Its unix socket.
        images: Digest of each image that the engine has, by name; one at first.
        registry: The same for images that can be pulled.
        gpus: Whether there is a driver for GPUs.
    """

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "docker.sock"
        self.images = {IMAGE: DIGEST}
        self.registry: dict[str, str] = {}
        self.gpus = False
        self._directory = directory
        self._lock = threading.RLock()
        self._containers: dict[str, Container] = {}
        self._server = _Server(str(self.socket), handler(self.respond, lambda refused: {"message": refused.message}))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for container in self._containers.values():
            container.signal(signal.SIGKILL)

    def container(self, name: str) -> Container:
        return self._containers[name]

    def names(self) -> list[str]:
        return sorted(self._containers)

    def kill_for_memory(self, name: str) -> None:
        container = self._containers[name]
        container.out_of_memory = True
        container.signal(signal.SIGKILL)
        container.process.wait()

    def respond(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """One call: status and body."""
        url = urlparse(target)
        path = unquote(re.sub(r"^/v\d\.\d+", "", url.path))
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if path == "/version":
            return 200, json.dumps({"Version": "28.0", "ApiVersion": "1.47", "MinAPIVersion": "1.24"}).encode()
        with self._lock:
            if match := _IMAGE.fullmatch(path):
                return 200, json.dumps(self._image(match["name"])).encode()
            if (method, path) == ("POST", "/images/create"):
                return 200, json.dumps(self._pull(f"{query['fromImage']}:{query['tag']}")).encode()
            if (method, path) == ("POST", "/containers/create"):
                return 201, json.dumps(self._create(query.get("name", ""), body or {})).encode()
            if match := _CONTAINER.fullmatch(path):
                return self._container(method, match["name"], match["action"], query)
        raise Refused(404, "", "page not found")

    def _image(self, name: str) -> dict[str, Any]:
        for image, digest in self.images.items():
            repository = image.rpartition(":")[0]
            if name in (image, f"{repository}@{digest}"):
                return {"Id": digest.replace("0", "1"), "RepoTags": [image], "RepoDigests": [f"{repository}@{digest}"]}
        raise Refused(404, "", f"No such image: {name}")

    def _pull(self, image: str) -> dict[str, Any]:
        if image not in self.registry:
            message = f"manifest for {image} not found: manifest unknown"
            return {"error": message, "errorDetail": {"message": message}}
        self.images[image] = self.registry[image]
        return {"status": f"Status: Downloaded newer image for {image}"}

    def _create(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        host = options.get("HostConfig") or {}
        if not _NAME.fullmatch(name):
            raise Refused(400, "", f"Invalid container name ({name})")
        if found := self._containers.get(name):
            raise Refused(
                409, "", f'Conflict. The container name "/{name}" is already in use by container "{found.id}".'
            )
        self._image(options["Image"])
        for mount in host.get("Mounts") or ():
            if not Path(mount["Source"]).exists():
                raise Refused(400, "", f"invalid mount config: bind source path does not exist: {mount['Source']}")
            if mount["Source"] != mount["Target"]:
                raise Refused(501, "", "this double mounts at the same path only")
        container = Container(id=uuid.uuid4().hex * 2, name=name, options=options)
        self._containers[name] = container
        return {"Id": container.id, "Warnings": []}

    def _container(self, method: str, name: str, action: str | None, query: dict[str, str]) -> tuple[int, bytes]:
        container = next((c for c in self._containers.values() if name in (c.name, c.id)), None)
        if container is None:
            raise Refused(404, "", f"No such container: {name}")
        if (method, action) == ("GET", "json"):
            return 200, json.dumps(container.inspected()).encode()
        if (method, action) == ("GET", "logs"):
            return 200, _frames(container, int(query["tail"]))
        if (method, action) == ("POST", "start"):
            return self._start(container)
        if (method, action) == ("POST", "stop"):
            return self._stop(container, float(query["t"]))
        if (method, action) == ("DELETE", None):
            if container.status == "running" and query.get("force") not in ("1", "True", "true"):
                raise Refused(409, "", "cannot remove container: container is running: stop it first or force removal")
            container.signal(signal.SIGKILL)
            del self._containers[container.name]
            return 204, b""
        raise Refused(404, "", "page not found")

    def _start(self, container: Container) -> tuple[int, bytes]:
        if container.process is not None:
            return 304, b""
        host, command = container.options["HostConfig"], container.options["Cmd"]
        if host.get("DeviceRequests") and not self.gpus:
            raise Refused(500, "", 'could not select device driver "" with capabilities: [[gpu]]')
        if host["NetworkMode"] not in _NETWORKS:
            raise Refused(404, "", f"network {host['NetworkMode']} not found")
        if shutil.which(command[0]) is None:
            message = f'exec: "{command[0]}": stat {command[0]}: no such file or directory'
            raise Refused(
                400, "", f"failed to create task for container: OCI runtime create failed: {message}: unknown"
            )
        container.output = self._directory / f"{container.id}.log"
        environment = dict(variable.split("=", 1) for variable in container.options["Env"])
        with container.output.open("wb") as output:
            container.process = subprocess.Popen(
                command,
                env={"PATH": os.environ["PATH"]} | environment,
                cwd=container.options.get("WorkingDir") or "/",
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return 204, b""

    def _stop(self, container: Container, grace_seconds: float) -> tuple[int, bytes]:
        if container.status != "running":
            return 304, b""
        container.signal(signal.SIGTERM)
        try:
            container.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            container.signal(signal.SIGKILL)
            container.process.wait()
        os.killpg(container.process.pid, signal.SIGKILL) if _group_lives(container.process.pid) else None
        return 204, b""


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _frames(container: Container, tail: int) -> bytes:
    """Multiplexed as the engine does without a terminal: stream, length, payload."""
    lines = container.output.read_bytes().splitlines(keepends=True)[-tail:] if container.output else []
    return b"".join(struct.pack(">BxxxL", 1, len(line)) + line for line in lines)


class _Server(Patient, ThreadingUnixStreamServer):
    pass
