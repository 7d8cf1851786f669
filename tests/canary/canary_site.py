"""A router, two slots and users for the canary's tests; a module of its own, for every directory has a `conftest`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from free_ports import free_ports
from http_slots import HttpSlots
from waiting import until

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.router import EnvoyRouter, start_router, stop_router
from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base import detached
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.access_log import LogCursor, ObservedRequest
from llm_pipeline.canary.router import SlotName, all_to
from llm_pipeline.config.server_place import ServerPorts

STABLE = ArtifactRef(kind="model_repository", digest="a" * 64)
CANDIDATE = ArtifactRef(kind="model_repository", digest="b" * 64)


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

    def users_go(self) -> None:
        """Let the users finish."""
        for process in self._users:
            detached.stop(process, grace_seconds=20)
        self._users.clear()

    def logged(self, since: LogCursor | None = None) -> list[ObservedRequest]:
        """Requests of users that have ended before this call; the log keeps their order."""
        last = f"/last/{time.monotonic_ns()}"  # the router answers it itself
        with contextlib.suppress(HTTPError):
            urlopen(self.url + last, timeout=30)
        log = self.router.access_log()
        until(lambda: last.encode() in self.router.files.access_log.read_bytes())
        requests, _ = log.read(since or LogCursor())
        return [request for request in requests if not request.in_flight]

    def weights(self) -> dict[str, int]:
        return {slot: weight for slot, weight in self.router.read()[0].weights.items() if weight}

    def down(self) -> None:
        self.users_go()
        stop_router(self.router_state)
        for slot in self.slots:
            self.control.stop(slot)
