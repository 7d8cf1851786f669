"""Envoy as a traffic router: routes in a watched file, acknowledged by the statistics of the running proxy."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.xds import clusters, listener, routes
from llm_pipeline.adapters.envoy.xds.messages import LOCAL_HOST, address_text, addresses_of, replace_json
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import Fenced
from llm_pipeline.base.file_lock import flocked_within
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.access_log import AccessLog
from llm_pipeline.canary.router import (
    ROUTES,
    STAT_PREFIX,
    ArmProtocol,
    RouterCondition,
    RouterConflict,
    RouterRejected,
    RouterUnavailable,
    RouteState,
    SlotName,
    candidate_of,
    plain_name,
    standby_of,
)
from llm_pipeline.canary.users_paths import apis_of
from llm_pipeline.config.server_place import SlotServer

log = get_logger(__name__)

_QUESTIONS = 3
_ADMIN_SECONDS, _LOCK_SECONDS = 2.0, 5.0
_NAMES = TypeAdapter(dict[str, str])
_RDS_STATISTICS = f"http.{STAT_PREFIX}.rds.{ROUTES}"


class EndpointStatistics(Frozen):
    """What the router counted for one server, over every cluster that it is in.

    Attributes:
        attempts: Requests sent to it, hidden retries included.
        active: Requests in flight.
        healthy: The router would send requests to it; OpenAI's API aside.
    """

    attempts: int
    active: int
    healthy: bool


class RouterFiles:
    """Where one router keeps its files; everything it needs to come back with the same weights."""

    def __init__(self, state: Path, *, xds: Path | None = None, access_log: Path | None = None) -> None:
        self.state = state
        self.xds = xds or state / "xds"
        self.routes = self.xds / "rds.json"
        self.clusters = self.xds / "cds.json"
        self.listeners = self.xds / "lds.json"
        self.secrets = self.xds / "sds.json"
        self.bootstrap = state / "bootstrap.json"
        self.place = state / "place.json"
        self.releases = state / "releases.json"
        self.lock = state / "routes.lock"  # outside the watched directory
        self.access_log = access_log or state / "access.jsonl"
        self.process_log = state / "envoy.log"
        self.record = state / "envoy.process.json"


class EnvoyRouter:
    """The `TrafficRouter` port on one Envoy whose xDS files are on this host.

    Attributes:
        largest_access_log_bytes: A larger record of requests is begun anew; None where others see to that.
    """

    largest_access_log_bytes: int | None = None

    def __init__(
        self,
        files: RouterFiles,
        place: EnvoyPlace,
        slots: dict[SlotName, SlotServer],
    ) -> None:
        self.files = files
        self.place = place
        self.slots = slots
        self._addresses = {
            slot: addresses_of(server, LOCAL_HOST, only_openai=place.only_openai) for slot, server in slots.items()
        }
        self._rejected_before_write: int | None = None

    def nearest(self, want: RouteState) -> RouteState:
        """The state itself: Envoy can do all of it, to the basis point."""
        return want

    def read(self) -> tuple[RouteState, str]:
        document = self._read_routes()
        revision = str(document.get("version_info"))
        weights: dict[str, int] = {}
        try:
            epoch, _, owner = revision.split(":", 2)
            arms = routes.weights_of(document)
            for name, weight in arms.items():
                weights[plain_name(name)] = weight
            state = RouteState.model_validate(
                {
                    "weights": weights,
                    "candidate": candidate_of(arms),
                    "standby": standby_of(arms),
                    "sticky_header": routes.sticky_header_of(document),
                    "owner": owner,
                    "epoch": int(epoch),
                }
            )
        except (LookupError, TypeError, ValueError) as error:  # a validation error is a ValueError
            raise RouterUnavailable(f"the routes were edited and cannot be read: {error}", where=self._where) from error
        return state, revision

    def write(self, want: RouteState, expect: str | None) -> str:
        with self._locked():
            current, revision = self._read_for_write(expect)
            if current is not None:
                if want.epoch < current.epoch:
                    raise Fenced(f"epoch {want.epoch} was superseded: {current.owner} writes with {current.epoch}")
                if want == current:
                    return revision
                if expect is not None and expect != revision:
                    raise RouterConflict(f"the routes are at {revision}, not at {expect}", where=self._where)
            self._rejected_before_write = self._rejections()
            return self.replace_routes(want)

    def write_configuration(self, initial: RouteState) -> None:
        """Write what Envoy reads, and its first routes if it never had any.

        Raises:
            OSError: The disk refuses.
        """
        self.files.xds.mkdir(parents=True, exist_ok=True)
        self.update_configuration()
        if not self.files.routes.exists():
            self.replace_routes(initial)
        admin_port = urlsplit(self.place.admin_url).port
        replace_json(self.files.bootstrap, listener.bootstrap(self.files.xds, admin_port or 80, self.place.limits))

    def update_configuration(self) -> None:
        """Write the configuration as this version makes it: a running Envoy reads it, and keeps its traffic.

        Raises:
            OSError: The disk refuses.
        """
        files, place = self.files, self.place
        _replace_changed(files.clusters, clusters.clusters(self.slots, LOCAL_HOST, only_openai=place.only_openai))
        if place.tls is not None:
            _replace_changed(files.secrets, listener.secrets(place.tls))
        _replace_changed(files.listeners, listener.listeners(files.xds, place, files.access_log))
        with contextlib.suppress(RouterUnavailable), self._locked():  # routes that cannot be read are left to a write
            state, revision = self.read()
            if self._routes(state, revision) != self._read_routes():
                self.replace_routes(state)

    def replace_routes(self, want: RouteState) -> str:
        """Write the routes without asking; for the first start, and under the lock."""
        revision = f"{want.epoch}:{time.time_ns()}:{want.owner}"
        try:
            replace_json(self.files.routes, self._routes(want, revision))
        except OSError as error:
            raise RouterUnavailable(f"cannot write the routes: {error}", where=self._where) from error
        return revision

    def name_release(self, slot: SlotName, release_id: str) -> None:
        """Have the answers of a slot's server say which release gave them; the traffic and its revision stay.

        Raises:
            RouterUnavailable: It cannot be written.
        """
        with self._locked():
            known = self._releases()
            if known.get(slot) == release_id:
                return
            try:
                replace_json(self.files.releases, {**known, slot: release_id})
                with contextlib.suppress(RouterUnavailable):  # the next write of the routes has it
                    state, revision = self.read()
                    replace_json(self.files.routes, self._routes(state, revision))
            except OSError as error:
                raise RouterUnavailable(f"cannot write the routes: {error}", where=self._where) from error

    def _releases(self) -> dict[str, str]:
        """The release in each slot, as far as known."""
        try:
            return _NAMES.validate_json(self.files.releases.read_bytes())
        except (OSError, ValidationError):
            return {}

    def _routes(self, state: RouteState, revision: str) -> dict[str, Any]:
        known = self._releases()
        names = {
            address_text(*address): known[slot]
            for slot, addresses in self._addresses.items()
            if slot in known
            for address in addresses.values()
        }
        apis = apis_of(self.slots, only_openai=self.place.only_openai)
        return routes.routes(state, revision, self.place.limits, names, apis)

    def converged(self, revision: str) -> bool | None:
        """Whether Envoy acts on the revision.

        An unchanged table under a new version shows only in the statistic `version_text`, and a changed one must
        show in the configuration dump too; both are asked.
        """
        try:
            statistics = self.admin(f"/stats?filter={_RDS_STATISTICS}")
            dump = json.loads(self.admin("/config_dump?resource=dynamic_route_configs"))
        except (RouterUnavailable, ValueError):
            return None
        if f'{_RDS_STATISTICS}.version_text: "{revision}"' in statistics:
            tables = [entry["route_config"] for entry in dump.get("configs", [])]
            return any(routes.weights_of(table) == routes.weights_of(self._read_routes()) for table in tables)
        before = self._rejected_before_write
        if before is not None and (_counter(statistics, "update_rejected") or 0) > before:
            raise RouterRejected(
                "Envoy refused the routes and kept the old ones", where=self._where, hint=str(self.files.process_log)
            )
        return False

    def statistics(self) -> dict[SlotName, EndpointStatistics]:
        """Counters of every server by slot, failed attempts that fail-over hid included.

        Raises:
            RouterUnavailable: The admin interface does not answer.
        """
        try:
            listing = json.loads(self.admin("/clusters?format=json"))
        except ValueError as error:
            raise RouterUnavailable(
                "the admin interface gave an answer that cannot be read", where=self._where
            ) from error
        return {slot: _endpoint_statistics(listing, addresses) for slot, addresses in self._addresses.items()}

    def attempts(self) -> int | None:
        """Requests that were sent to the servers so far, hidden retries included; None when that cannot be known."""
        try:
            return sum(one.attempts for one in self.statistics().values())
        except RouterUnavailable:
            return None

    def usable(self, slot: SlotName) -> bool | None:
        try:
            return self.statistics()[slot].healthy
        except RouterUnavailable:
            return None

    def active_requests(self, slot: SlotName) -> int | None:
        try:
            return self.statistics()[slot].active
        except RouterUnavailable:
            return None

    def revive(self) -> str | None:
        """Nothing to do: this Envoy was not started by this package."""
        return None

    def slot_of_address(self, address: str | None) -> SlotName | None:
        """The slot of an upstream address as the access log has it."""
        for slot, addresses in self._addresses.items():
            if address in {address_text(*one) for one in addresses.values()}:
                return slot
        return None

    def ready(self) -> bool:
        """Whether Envoy says that it is live."""
        try:
            return self.admin("/ready").strip() == "LIVE"
        except RouterUnavailable:
            return False

    def condition(self) -> RouterCondition:
        answers = any(self.ready() for _ in range(_QUESTIONS))  # a busy host takes its time
        return "runs" if answers else "answers nothing"

    def access_log(self) -> AccessLog:
        """Its record of requests, one by one."""
        return AccessLog(
            self.files.access_log,
            self.slot_of_address,
            reopen=self.reopen_log,
            largest_bytes=self.largest_access_log_bytes,
        )

    def reopen_log(self) -> None:
        """Make Envoy open its access log by its name again.

        Raises:
            RouterUnavailable: The admin interface does not answer.
        """
        self.admin("/reopen_logs", method="POST")

    def admin(self, path: str, *, method: str = "GET") -> str:
        """What the admin interface answers.

        Raises:
            RouterUnavailable: It does not.
        """
        parts = urlsplit(self.place.admin_url)
        try:
            return call(f"{parts.scheme}://{parts.netloc}{path}", seconds=_ADMIN_SECONDS, method=method).text
        except OSError as error:
            raise RouterUnavailable(f"the admin interface does not answer: {error}", where=self._where) from error

    @property
    def _where(self) -> str:
        return str(self.files.routes)

    def _read_routes(self) -> dict[str, Any]:
        try:
            return cast("dict[str, Any]", json.loads(self.files.routes.read_text()))
        except (OSError, ValueError) as error:
            raise RouterUnavailable(f"the routes cannot be read: {error}", where=self._where) from error

    def _read_for_write(self, expect: str | None) -> tuple[RouteState | None, str]:
        """What is there now; an unreadable file does not stop a write that expects nothing (rollback)."""
        try:
            return self.read()
        except RouterUnavailable:
            if expect is not None:
                raise
            return None, ""

    def _rejections(self) -> int | None:
        try:
            return _counter(self.admin(f"/stats?filter={_RDS_STATISTICS}"), "update_rejected")
        except RouterUnavailable:
            return None

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


def _replace_changed(path: Path, document: dict[str, Any]) -> None:
    with contextlib.suppress(FileNotFoundError, ValueError):
        if json.loads(path.read_text()) == document:
            return
    replace_json(path, document)


def _counter(statistics: str, name: str) -> int | None:
    prefix = f"{_RDS_STATISTICS}.{name}: "
    found = [line.removeprefix(prefix) for line in statistics.splitlines() if line.startswith(prefix)]
    return int(found[0]) if found else None


def _endpoint_statistics(
    listing: dict[str, Any], addresses: Mapping[ArmProtocol, tuple[str, int]]
) -> EndpointStatistics:
    """Counters of the server at these addresses, from a listing of all clusters."""
    attempts = active = 0
    healthy = True
    for cluster in listing.get("cluster_statuses", []):
        for host in cluster.get("host_statuses", []):
            at = host["address"]["socket_address"]
            if (at["address"], at["port_value"]) not in addresses.values():
                continue
            values = {entry["name"]: int(entry.get("value", 0)) for entry in host.get("stats", [])}
            attempts += values.get("rq_total", 0)
            active += values.get("rq_active", 0)
            health = host.get("health_status", {})
            if (at["address"], at["port_value"]) != addresses.get("openai"):  # an older release has none
                healthy &= not (health.get("failed_active_health_check") or health.get("failed_outlier_check"))
    return EndpointStatistics(attempts=attempts, active=active, healthy=healthy)
