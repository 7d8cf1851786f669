"""A router, two slots and users for the canary's tests; a module of its own, for every directory has a `conftest`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from http_slots import HttpSlots

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.process import start_router, stop_router
from llm_pipeline.adapters.envoy.router import EnvoyRouter
from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base import detached
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary.access_log import LogCursor, ObservedRequest
from llm_pipeline.canary.record import CanaryRecord, read_canary_record
from llm_pipeline.canary.router import SlotName, access_log_of, all_to
from llm_pipeline.config.deployment import ServerPorts

STABLE = ArtifactRef(kind="model_repository", digest="a" * 64)
CANDIDATE = ArtifactRef(kind="model_repository", digest="b" * 64)
FIRST_PORT = 18540 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FAST_POLICY = {
    "steps_percent": [20, 50, 100],
    "minimum_bake_seconds": 1.0,
    "maximum_bake_seconds": 25,
    "minimum_requests": 10,
    "slow_ratio": 3.0,
    "slow_quantiles": [0.95],
    "look_seconds": 0.2,
}


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in range(FIRST_PORT, FIRST_PORT + 30):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports in the range of these tests")


class Site:
    """A router, two slots and users, all real processes on loopback."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ports = free_ports(10)
        self.place = EnvoyPlace(port=ports[0], admin_port=ports[1])
        self.slots: dict[SlotName, ServerPorts] = {
            "blue": ServerPorts(http=ports[2], grpc=ports[3], metrics=ports[4], openai=ports[8]),
            "green": ServerPorts(http=ports[5], grpc=ports[6], metrics=ports[7], openai=ports[9]),
        }
        self.store = LocalStore(f"file://{root}/store")
        self.control = HttpSlots(root, self.slots)
        self.router: EnvoyRouter
        self._users: list[detached.DetachedProcess] = []

    @property
    def router_state(self) -> Path:
        return self.root / "router"

    @property
    def step_log(self) -> Path:
        return self.root / "step.log"

    def events(self) -> list[str]:
        """What the latest step logged."""
        return [json.loads(line)["event"] for line in self.step_log.read_text().splitlines()]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.place.port}"

    def up(self) -> None:
        self.control.ensure("blue", STABLE)
        self.start_router()

    def start_router(self) -> EnvoyRouter:
        self.router = start_router(
            self.place, self.slots, self.router_state, initial=all_to("blue", owner="test", epoch=0)
        )
        return self.router

    def users(self, rate: float) -> None:
        prompts = self.root / "prompts.jsonl"
        prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
        command = [sys.executable, "-m", "llm_pipeline.demo.traffic", "--url", self.url, "--rate", str(rate)]
        command += ["--record", str(self.root / "traffic.json"), "--prompts", str(prompts)]
        self._users.append(detached.start("users", command, self.root / "users.json", log=self.root / "users.log"))
        self.await_sent(25)

    def traffic(self) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads((self.root / "traffic.json").read_text())
        except FileNotFoundError:
            return {"sent": 0, "ok": 0, "failed": 0}
        return record

    def await_sent(self, more: int) -> None:
        goal, deadline = self.traffic()["ok"] + more, time.monotonic() + 60
        while self.traffic()["ok"] < goal:
            assert time.monotonic() < deadline, (self.root / "users.log").read_text()[-2000:]
            time.sleep(0.1)

    def users_go(self) -> dict[str, Any]:
        """Let the users finish; what became of all their requests."""
        for process in self._users:
            detached.stop(process, grace_seconds=20)
        self._users.clear()
        return self.traffic()

    def settings(self, **changes: Any) -> Path:
        path = self.root / "settings.json"
        base = {"root": str(self.root), "store": self.store.uri, "release_id": "r1", "run": "first run"}
        base |= {"policy": FAST_POLICY, "promoted_at": "2026-01-01T00:00:00+00:00"}
        path.write_text(json.dumps({**base, **changes}))
        return path

    def start_step(self, percent: float, **settings: Any) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("drive.py")
        command = [sys.executable, str(script), str(self.settings(**settings)), str(percent)]
        with self.step_log.open("wb") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def step(self, percent: float, **settings: Any) -> Judgement:
        process = self.start_step(percent, **settings)
        output, _ = process.communicate(timeout=90)
        assert process.returncode in range(4), output + self.step_log.read_text()
        return Judgement.model_validate_json(output)

    def record(self) -> CanaryRecord:
        record = read_canary_record(self.store, "r1", "cpu")
        assert record is not None
        return record

    def logged(self, since: LogCursor | None = None) -> list[ObservedRequest]:
        """Requests of users that have ended before this call; the log keeps their order."""
        last = f"/last/{time.monotonic_ns()}"  # the router answers it itself
        with contextlib.suppress(HTTPError):
            urlopen(self.url + last, timeout=30)
        log, deadline = access_log_of(self.router), time.monotonic() + 60
        while last.encode() not in self.router.files.access_log.read_bytes():
            assert time.monotonic() < deadline, "the router writes its log"
            time.sleep(0.02)
        requests, _ = log.read(since or LogCursor())
        return [request for request in requests if not request.in_flight]

    def weights(self) -> dict[str, int]:
        return {slot: weight for slot, weight in self.router.read()[0].weights.items() if weight}

    def down(self) -> None:
        self.users_go()
        stop_router(self.router_state)
        for slot in self.slots:
            self.control.stop(slot)
