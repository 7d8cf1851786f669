"""One Triton server per slot: started detached on loopback ports, found again by its state directory, stopped whole.

    server = start_server(repository, ports, triton_home=home, python=python, state=state)
    find_server(state)           # the same server, from any process, until it ends
    stop_server(state, drain_seconds=30)

The state directory holds the pid record, the log, what is being served, and the runtime files of the server. With it
starts and ends the process that speaks OpenAI's API (`llm_pipeline.endpoint`), confined like it. Where the repository
names a server that speaks it itself, that one is started instead of both (`prepare_own_server`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path

from pydantic import ValidationError

from llm_pipeline.artifacts.endpoint_description import EndpointDescription, read_serve_command
from llm_pipeline.artifacts.repository_layout import ENDPOINT_FILE, MODEL_NAME, MODEL_VERSION
from llm_pipeline.base import detached
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.confinement import confined
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.errors import ConfigError, PipelineError, Terminal, Transient
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.plain_environment import gpu_variables
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.endpoint_access import await_no_requests, served_name
from llm_pipeline.serving.ports import LOOPBACK, loopback_endpoint, require_free
from llm_pipeline.serving.server_log import failure_lines, own_failure
from llm_pipeline.serving.slot_fence import FencingToken, admit, exclusive
from llm_pipeline.serving.triton_runtime import (
    EXIT_SECONDS,
    link_repository,
    prepare_own_server,
    prepare_triton,
    segments,
)

_GRACE_SECONDS = EXIT_SECONDS + 7.0  # Triton itself needs about 3 s after the last request
SERVER_LOG = "server.log"
_OPENAI_RECORD, _OPENAI_LOG = "openai.process.json", "openai.log"
_INHERITED = ("LANG", "LC_ALL", "PATH", "TZ")
_OPENAI_GRACE_SECONDS = 3.0
_CORES_PER_WORKER, _MOST_WORKERS = 4, 4
_ANSWER_SECONDS = 2.0
_SHOWN_LINES = 10
_log = get_logger(__name__)


class ServerFailed(Terminal):
    """The server ended while it started; the message holds the log lines that explain it."""


class SlotBusy(ConfigError):
    """The slot already serves another repository."""


class RunningServer(Frozen):
    """A server and what it serves.

    Attributes:
        repository: The model repository directory, read-only.
        digest: Digest of the repository artifact; empty when the starter did not name it.
        ports: Its loopback ports.
        process: The server's process.
        models: The repository's models, all of which must be loaded.
        own_metrics: Path of its metrics, where it is an engine's own server with OpenAI's API; empty for a Triton.
        environment_digest: Digest of the environment variables that the starter added.
        started_at: When it was started, UTC.
        ready_seconds: Time from the start to a loaded model.
    """

    repository: Path
    digest: str = ""
    ports: ServerPorts
    process: detached.DetachedProcess
    models: tuple[str, ...] = (MODEL_NAME,)
    own_metrics: str = ""
    environment_digest: str
    started_at: datetime
    ready_seconds: float = 0.0

    @property
    def pid(self) -> int:
        """The server's pid, which is also its process group."""
        return self.process.pid

    @property
    def endpoint(self) -> Endpoint:
        """Where it is asked on loopback, and its metrics."""
        return loopback_endpoint(self.ports, self.own_metrics)

    @property
    def http_url(self) -> str:
        """Base URL of Triton's own HTTP endpoint."""
        return f"http://{LOOPBACK}:{self.ports.http}"

    @property
    def about(self) -> EndpointDescription:
        """What is said of its model by OpenAI's API."""
        file = self.repository / MODEL_NAME / str(MODEL_VERSION) / ENDPOINT_FILE
        return load_record(EndpointDescription, file, "not an endpoint's description")

    @property
    def alive(self) -> bool:
        """Whether the server's process still runs; says nothing about the model."""
        return self.process.alive

    @property
    def ready(self) -> bool:
        """Whether the server runs and says that its models are loaded, and OpenAI's API is spoken."""
        urls = [] if self.own_metrics else [f"{self.http_url}/v2/models/{model}/ready" for model in self.models]
        urls.append(f"{self.endpoint.url}/health")
        try:
            return self.alive and all(call(url, seconds=_ANSWER_SECONDS).status == HTTPStatus.OK for url in urls)
        except OSError:
            return False


def start_server(
    repository: Path,
    ports: ServerPorts,
    *,
    triton_home: Path,
    python: Path,
    state: Path,
    environment: Mapping[str, str] | None = None,
    digest: str = "",
    links: Mapping[str, Path] | None = None,
    wait_seconds: float = 60,
    token: FencingToken | None = None,
) -> RunningServer:
    """Serve `repository` on `ports` and wait until its models are loaded; the running server if it already is.

    Its working directory is its view of the repository: relative paths in configurations start there. The kernel keeps
    it to that view, its own software and the system's directories, where it can (see `confinement`).

    Args:
        repository: Model repository that holds the model `llm`.
        ports: Loopback ports.
        triton_home: Directory with the unpacked nvidia-pytriton wheel, or an installed server.
        python: Interpreter of the models' code; an installed server has its own.
        state: The slot's directory.
        environment: Variables added to the server's environment; no secrets.
        digest: Digest of the repository artifact, which becomes part of the server's name.
        links: Local directories of what the repository links to, by their place in it.
        wait_seconds: Longest wait for the loaded models.
        token: The owner that acts, if the slot is one of several of a place.

    Raises:
        Fenced: An owner with a newer token took the place over.
        ConfigError: A port is taken, the slot serves something else (`SlotBusy`), or a path is wrong.
        Unsupported: The interpreter cannot be embedded by the stub.
        ServerFailed: The server ended at its start, for example on an exception in `model.py`.
        Transient: The models were not loaded in time.
    """
    repository, state = repository.resolve(), state.absolute()
    if not (repository / MODEL_NAME / "config.pbtxt").is_file():
        raise ConfigError(f"no model {MODEL_NAME!r} in this repository", where=str(repository))
    environment_digest = sha256_json(dict(environment or {}))
    with exclusive(state):
        if token:
            admit(state.parent, token)
        if running := find_server(state):
            if _has_gone(state / _OPENAI_RECORD):
                _log.error("the process that speaks OpenAI's API has ended: starting it again", slot=state.name)
                _start_openai(state, running.ports, running.repository, running.digest)
                wait_until(lambda: running.ready, wait_seconds)
            same = (running.repository, running.ports, running.environment_digest)
            if same == (repository, ports, environment_digest) and running.ready:
                return running
            raise SlotBusy(
                f"http port {running.ports.http} belongs to the running server pid {running.pid}, "
                f"which serves {running.repository}",
                where=str(running.process.log.parent),
                hint="stop that server first",
            )
        _sweep(state)
        require_free(ports, what=f"triton server for {repository}")
        link_repository(repository, state / "repository", links)
        if (log := state / SERVER_LOG).exists():
            log.replace(state / "server.previous.log")
        models = tuple(sorted(path.parent.name for path in repository.glob("*/config.pbtxt")))
        gpus = {} if ports.gpus is None else gpu_variables(ports.gpus)  # else those of this process, maybe not all
        own = read_serve_command(repository)
        if own is not None:
            launch = prepare_own_server(own, python, state, port=ports.openai, digest=digest)
        else:
            launch = prepare_triton(triton_home, python, state, ports=ports, digest=digest, models=models)
        start = partial(
            detached.start,
            f"server {state.name}",
            launch.command,
            state / "process.json",
            log=log,
            environment={**launch.environment, **gpus, **(environment or {})},
            directory=state / "repository",
        )
        readable = (*launch.readable, state, repository, *(links or {}).values(), *map(Path, ports.readable))
        process = confined(start, readable, network=True)
        if own is None:
            _start_openai(state, ports, repository, digest)
        server = RunningServer(
            repository=repository,
            digest=digest,
            ports=ports,
            process=process,
            models=models,
            own_metrics=own.metrics_path if own is not None else "",
            environment_digest=environment_digest,
            started_at=datetime.now(UTC),
        )
        return _await_ready(server, state, wait_seconds)


def find_server(state: Path) -> RunningServer | None:
    """The server of a slot if its process still runs; None otherwise."""
    try:
        server = RunningServer.model_validate_json((state / "server.json").read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ConfigError(f"not a server record: {error}", where=str(state / "server.json")) from error
    return server if server.alive else None


def is_running(state: Path) -> bool:
    """Whether a slot's server runs, also one whose own record says nothing: its process has another."""
    if _has_gone(state / _OPENAI_RECORD):
        return False
    try:
        return find_server(state) is not None
    except ConfigError:
        process = detached.load(state / "process.json")
        return process is not None and process.alive


def has_ended(state: Path) -> bool:
    """Whether a slot's server is gone without having been stopped."""
    return _has_gone(state / _OPENAI_RECORD) or _has_gone(state / "process.json")


def stop_server(state: Path, *, drain_seconds: float = 0, digest: str = "", token: FencingToken | None = None) -> bool:
    """Stop a slot's server, if there is one, with everything it left: its group, orphaned stubs, shared memory.

    Args:
        state: The slot's directory.
        drain_seconds: Longest wait for requests in flight before the server is stopped.
        digest: Only a server that serves this repository is stopped; empty for any.
        token: The owner that acts, if the slot is one of several of a place.

    Returns:
        False when the slot serves another repository than `digest`, which goes on.

    Raises:
        Fenced: An owner with a newer token took the place over; nothing was stopped.
    """
    if not state.is_dir():
        if token:
            admit(state.parent, token)
        return True
    with exclusive(state):
        if token:
            admit(state.parent, token)
        if digest:
            process = detached.load(state / "process.json")
            named = {served_name(digest), f"--id={served_name(digest)}"}  # its command line has it before it is ready
            if process is not None and process.session_alive and named.isdisjoint(process.command):
                return False
        try:
            server = find_server(state)
        except ConfigError as error:  # the process has a record of its own
            _log.warning("a server is stopped without its record", slot=state.name, reason=error.message)
            server = None
        if server and drain_seconds > 0:
            await_no_requests(server.endpoint, drain_seconds)
        started = time.monotonic()
        _sweep(state)
        if server:
            _log.info("server stopped", slot=state.name, pid=server.pid, seconds=time.monotonic() - started)
        return True


def _await_ready(server: RunningServer, state: Path, wait_seconds: float) -> RunningServer:
    started, log = time.monotonic(), server.process.log
    where, hint = str(server.repository), f"the whole log is {log}"
    failure = own_failure if server.own_metrics else failure_lines
    while not server.ready:
        problem: PipelineError | None = None
        if not server.alive:
            problem = ServerFailed(f"the server ended while it started:\n{failure(log)}", where=where, hint=hint)
        elif _has_gone(state / _OPENAI_RECORD):
            lines = (state / _OPENAI_LOG).read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            said = "\n".join(["the process that speaks OpenAI's API ended while it started:", *lines])
            problem = ServerFailed(said, where=where)
        elif time.monotonic() - started > wait_seconds:
            said = f"the models were not loaded within {wait_seconds:g} s:\n{failure(log)}"
            problem = Transient(said, where=where, hint=hint)
        if problem is not None:
            _sweep(state)
            raise problem
        time.sleep(0.05)
    ready = server.model_copy(update={"ready_seconds": round(time.monotonic() - started, 3)})
    replace_durably(state / "server.json", ready.model_dump_json(indent=1).encode())
    _log.info("server ready", slot=state.name, pid=ready.pid, url=ready.http_url, seconds=ready.ready_seconds)
    return ready


def _sweep(state: Path) -> None:
    """End whatever still runs of the slot's last server and remove what it left."""
    _end(state / _OPENAI_RECORD, _OPENAI_GRACE_SECONDS)
    _end(state / "process.json", _GRACE_SECONDS)
    (state / "server.json").unlink(missing_ok=True)
    for segment in segments(state):
        segment.unlink(missing_ok=True)


def _start_openai(state: Path, ports: ServerPorts, repository: Path, digest: str) -> None:
    """Start the process that speaks OpenAI's API (`llm_pipeline.endpoint`), confined as its server is."""
    _end(state / _OPENAI_RECORD, _OPENAI_GRACE_SECONDS)  # one that was killed leaves its workers, which hold the port
    workers = max(1, min(_MOST_WORKERS, (os.cpu_count() or 1) // _CORES_PER_WORKER))
    command = [
        *(sys.executable, "-P", "-m", "llm_pipeline.endpoint"),
        *("--port", str(ports.openai), "--triton", f"{LOOPBACK}:{ports.http}"),
        *("--model", str(state / "repository" / MODEL_NAME / str(MODEL_VERSION)), "--root", served_name(digest)),
        *("--workers", str(workers)),
    ]
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | {"HOME": str(state)}
    log = state / _OPENAI_LOG
    if log.exists():
        log.replace(state / "openai.previous.log")
    start = partial(
        detached.start, f"endpoint {state.name}", command, state / _OPENAI_RECORD, log=log, environment=environment
    )
    confined(start, (state, repository), network=True)


def _has_gone(record: Path) -> bool:
    """Whether a process is gone without having been stopped."""
    process = detached.load(record)
    return process is not None and not process.alive


def _end(record: Path, grace_seconds: float) -> None:
    """End a process, if there is one; answers that are being given have a moment."""
    if process := detached.load(record):
        detached.stop(process, grace_seconds=grace_seconds)
    record.unlink(missing_ok=True)
