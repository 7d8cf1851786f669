"""Slots of the canary tests: the `SlotControl` port over `upstream.py` processes that outlive the controller."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from llm_pipeline.base import detached
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.router import SlotName
from llm_pipeline.canary.slots import SlotControl, WarmUp
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.slot_fence import FencingToken, admit, exclusive, newest_token

UPSTREAM = Path(__file__).with_name("upstream.py")


class HttpSlots(SlotControl):
    def __init__(
        self,
        root: Path,
        ports: dict[SlotName, ServerPorts],
        drill: dict[str, float] | None = None,
        *,
        grpc: bool = False,
    ) -> None:
        self.root = root
        self.ports = ports
        self.drill = drill
        self.grpc = grpc

    def newest(self) -> FencingToken:
        return newest_token(self.root)

    def ensure(self, slot: SlotName, repository: ArtifactRef | None = None, token: FencingToken | None = None) -> None:
        with self._acting(slot, token):
            if not self.alive(slot):
                self._start(slot, repository, {})

    def replace(self, slot: SlotName, repository: ArtifactRef | None = None, token: FencingToken | None = None) -> None:
        with self._acting(slot, token):
            if self._served(slot) not in (None, repository):
                self._end(slot)
            if not self.alive(slot):
                self._start(slot, repository, {"LLM_PIPELINE_DRILL": json.dumps(self.drill)} if self.drill else {})

    def warm_up(self, slot: SlotName, repository: ArtifactRef) -> WarmUp:  # noqa: ARG002 - the port's
        return WarmUp(prompts=1, answered=1, matched=1)

    def alive(self, slot: SlotName) -> bool:
        process = detached.load(self.record(slot))
        return process is not None and process.alive

    def ended(self, slot: SlotName) -> bool:
        process = detached.load(self.record(slot))
        return process is not None and not process.alive

    def engine_death(self, slot: SlotName) -> str:
        del slot
        return ""

    def answers(self, slot: SlotName) -> bool:
        connection = HTTPConnection("127.0.0.1", self.ports[slot].http, timeout=2)
        try:
            connection.request("POST", "/v2/models/llm/generate", json.dumps({"text_input": "Hello", "max_tokens": 1}))
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self, slot: SlotName, repository: ArtifactRef | None = None, token: FencingToken | None = None) -> bool:
        """Stop what the slot serves, whatever that is unless a repository is given; tests act without a token."""
        with self._acting(slot, token):
            if repository is not None and self._served(slot) not in (None, repository):
                return False
            self._end(slot)
            return True

    def served(self, slot: SlotName) -> str:
        found = self._served(slot)
        return found.digest if found is not None else ""

    def _served(self, slot: SlotName) -> ArtifactRef | None:
        """What a live server of the slot was started with; None when nobody said."""
        file = self.root / slot / "repository.json"
        return ArtifactRef.model_validate_json(file.read_text()) if file.exists() and self.alive(slot) else None

    @contextmanager
    def _acting(self, slot: SlotName, token: FencingToken | None) -> Iterator[None]:
        with exclusive(self.root / slot):
            if token is not None:
                admit(self.root, token)
            yield

    def _end(self, slot: SlotName) -> None:
        if process := detached.load(self.record(slot)):
            detached.stop(process, grace_seconds=2)

    def pid(self, slot: SlotName) -> int:
        process = detached.load(self.record(slot))
        assert process is not None
        return process.pid

    def fault(self, slot: SlotName, **drill: float) -> None:
        """From now on the slot's server has this fault; none without arguments."""
        connection = HTTPConnection("127.0.0.1", self.ports[slot].http, timeout=5)
        connection.request("POST", "/drill", json.dumps(drill))
        assert connection.getresponse().status == 200
        connection.close()

    def record(self, slot: SlotName) -> Path:
        return self.root / slot / "process.json"

    def _start(self, slot: SlotName, repository: ArtifactRef | None, environment: dict[str, str]) -> None:
        file = self.root / slot / "repository.json"
        file.unlink(missing_ok=True)
        if repository is not None:
            file.write_text(repository.model_dump_json())
        port = self.ports[slot].http
        command = [sys.executable, str(UPSTREAM), slot, str(port), str(self.ports[slot].openai)]
        command += [str(self.ports[slot].grpc)] if self.grpc else []
        log = self.root / slot / "log"
        detached.start(slot, command, self.record(slot), log=log, environment={**os.environ, **environment})
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
