# ruff: noqa: ARG002
"""A server of this host that only says that it is ready."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import ClassVar, Literal

from llm_pipeline.base.adapters import Adapter
from llm_pipeline.base.errors import Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import ServerModel, ServerPorts
from llm_pipeline.config.target import Target
from llm_pipeline.serving.control import Candidate, StagedServer, StagingSlot, loopback_endpoint


class AcmeServer(ServerPorts, ServerModel):
    is_process_here: ClassVar[bool] = True

    kind: Literal["acme_server"]
    slow: bool = False

    def problems(self, target: Target) -> Iterator[str]:
        if target.accelerator != "cpu":
            yield f"acme_server has no {target.accelerator}"

    def warnings(self, target: Target) -> Iterator[str]:
        if self.slow:
            yield f"acme_server is slow for {target.name}"


class AcmeControl:
    def __init__(self, place: AcmeServer, slot: StagingSlot) -> None:
        self._place = place
        self._record = slot.state / "acme.json"

    @property
    def _endpoint(self) -> Endpoint:
        return loopback_endpoint(self._place)

    def start(self, candidate: Candidate, *, wait_seconds: float) -> StagedServer:
        self._record.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "http.server", str(self._place.openai), "--bind", "127.0.0.1"]
        process = subprocess.Popen([*command, "--directory", str(candidate.repository)], start_new_session=True)
        self._record.write_text(json.dumps({"pid": process.pid, "digest": candidate.digest}))
        deadline = time.monotonic() + wait_seconds
        while not self._answers():
            if time.monotonic() > deadline or process.poll() is not None:
                self.stop()
                raise Transient("it does not answer", where=self._endpoint.url)
            time.sleep(0.02)
        return StagedServer(self._endpoint, candidate.digest)

    def find(self) -> StagedServer | None:
        if not self._record.exists() or not self._answers():
            return None
        found = json.loads(self._record.read_text())
        return StagedServer(self._endpoint, found["digest"])

    def stop(self, *, drain_seconds: float = 0) -> None:
        if not self._record.exists():
            return
        pid = json.loads(self._record.read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._record.unlink()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self._endpoint.url, timeout=5):
                return True
        except OSError:
            return False


SERVER = Adapter(
    config=AcmeServer, open=AcmeControl, probe=lambda place: f"port {place.http} is kept for acme's server"
)
