"""Airflow on this machine: four detached processes on loopback, with everything they write in one directory.

    access = start_airflow(Path(".pipeline/airflow"), port=8080)
    with AirflowClient(access) as client: ...
    stop_airflow(Path(".pipeline/airflow"))

A started Airflow outlives the process that started it, and a second start finds it. SQLite keeps its state; the
servers that would listen on all addresses (the log servers of scheduler and triggerer) are left off. The client does
what the demo asks of the REST API: it triggers a release, follows it and answers its approval.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
from pydantic import BaseModel, Field

from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError, StageCrashed, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.serving.ports import require_free_port

log = get_logger(__name__)

USERNAME = "admin"
_FORKING = frozenset({"scheduler", "dag-processor", "celery"})
"""Commands whose processes run tasks or parse DAG files in forks of themselves."""
_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
_REPOSITORY = Path(__file__).resolve().parents[2]
_SECONDS_TO_HEALTH = 600.0


def start_airflow(
    home: Path,
    port: int,
    *,
    releases: Path | None = None,
    settings: Mapping[str, str] | None = None,
    workers: Mapping[str, tuple[str, ...]] | None = None,
) -> AirflowAccess:
    """Start Airflow, or find the one that runs, and wait until all of it is healthy.

    Args:
        home: Its directory: database, logs, keys and process records; made when missing.
        port: Loopback port of the UI and the API.
        releases: Directory of release configs; None for the repository's.
        settings: More Airflow settings, as `AIRFLOW__SECTION__KEY` variables, and others of its processes.
        workers: Arguments of `airflow` by name, for processes that the settings' executor needs besides.

    Raises:
        ConfigError: The port is taken by another process, or the database cannot be made.
        StageCrashed: A component ended while it started; the message holds the end of its log.
        Transient: It is not healthy after the time.
    """
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    environment = _environment(home, port, releases) | dict(settings or {})
    access = AirflowAccess(url=f"http://127.0.0.1:{port}", password=_password(home))
    if not _running(home, "api-server"):
        require_free_port(port, role="Airflow", what="the demo's Airflow")
    _migrate(home, environment)
    components = {**_COMPONENTS, **(workers or {})}
    for component, arguments in components.items():
        if not _running(home, component):
            module = "llm_pipeline.demo.airflow_process" if arguments[0] in _FORKING else "airflow"
            command, record = [sys.executable, "-m", module, *arguments], _record(home, component)
            output = home / "logs" / f"{component}.log"
            detached.start(f"airflow {component}", command, record, log=output, environment=environment, directory=home)
    _wait_until_healthy(home, access, tuple(components))
    log.info("Airflow is up", url=access.url, user=USERNAME, password_file=str(_password_file(home)))
    return access


def read_access(home: Path, port: int) -> AirflowAccess:
    """The address and password of an Airflow that was started in `home`.

    Raises:
        ConfigError: None was started.
    """
    if not _password_file(home).exists():
        raise ConfigError("no Airflow was started here", where=str(home))
    return AirflowAccess(url=f"http://127.0.0.1:{port}", password=_password(home))


def stop_airflow(home: Path) -> None:
    """Stop every process of the Airflow in `home`; its database and logs stay."""
    started = sorted((home / "processes").glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for record in started:
        if process := detached.load(record):
            detached.stop(process, grace_seconds=8.0)
            record.unlink(missing_ok=True)


def _environment(home: Path, port: int, releases: Path | None) -> dict[str, str]:
    fernet = urlsafe_b64encode(secrets.token_bytes(32)).decode()
    keys = _kept(home / "keys.json", {"fernet": fernet, "api": secrets.token_hex(32), "jwt": secrets.token_hex(32)})
    binaries = str(Path(sys.executable).parent)
    python_path = [str(_REPOSITORY), str(_REPOSITORY / "plugins"), os.environ.get("PYTHONPATH", "")]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")},
        "AIRFLOW_HOME": str(home),
        "PATH": os.pathsep.join([binaries, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(part for part in python_path if part),
        "AIRFLOW__LLM_PIPELINE__RELEASES": str(releases or _REPOSITORY / "configs" / "releases"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(_REPOSITORY / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),  # ours is found by its entry point
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__FERNET_KEY": keys["fernet"],
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USERNAME}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(_password_file(home)),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": keys["api"],
        "AIRFLOW__API_AUTH__JWT_SECRET": keys["jwt"],
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",  # the default of 30 takes a tenth of two cores
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    }


def _password_file(home: Path) -> Path:
    return home / "passwords.json"


def _password(home: Path) -> str:
    return _kept(_password_file(home), {USERNAME: secrets.token_urlsafe(16)})[USERNAME]


def _kept(path: Path, new: Mapping[str, str]) -> dict[str, str]:
    """Secrets that were made at the first start, or are now, for their owner's eyes."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump(new, stream)
    kept: dict[str, str] = json.loads(path.read_text())
    return kept


def _record(home: Path, component: str) -> Path:
    return home / "processes" / f"{component}.json"


def _running(home: Path, component: str) -> bool:
    process = detached.load(_record(home, component))
    return process is not None and process.alive


def _migrate(home: Path, environment: Mapping[str, str]) -> None:
    """Make the database once per Airflow version; a marker file saves the seconds that a check would take."""
    from importlib.metadata import version

    marker = home / "migrated"
    wanted = version("apache-airflow")
    if marker.exists() and marker.read_text() == wanted and (home / "airflow.db").exists():
        return
    log.info("making Airflow's database", directory=str(home))
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    done = subprocess.run(command, env=dict(environment), cwd=home, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(f"airflow db migrate failed:\n{(done.stdout + done.stderr)[-2000:]}", where=str(home))
    marker.write_text(wanted)


def _wait_until_healthy(home: Path, access: AirflowAccess, components: Sequence[str]) -> None:
    deadline = time.monotonic() + _SECONDS_TO_HEALTH
    is_warm = False
    while time.monotonic() < deadline:
        for component in components:
            if not _running(home, component):
                ended = home / "logs" / f"{component}.log"
                end = ended.read_text(errors="replace")[-1500:]
                raise StageCrashed(f"airflow {component} ended while it started:\n{end}", where=str(ended))
        waiting = _unhealthy(access)
        if not is_warm and "api-server" not in waiting:
            # The first call of the API that tasks use takes many seconds, which the first task would wait for.
            with suppress(httpx.TransportError):
                is_warm = httpx.get(f"{access.url}/execution/health", timeout=60.0).is_success
        if not waiting:
            return
        time.sleep(0.5)
    raise Transient(f"Airflow is not healthy after {_SECONDS_TO_HEALTH:g} s: waiting for {waiting}", where=str(home))


def _unhealthy(access: AirflowAccess) -> str:
    """What is not healthy yet; empty when all is."""
    try:
        answer = httpx.get(f"{access.url}/api/v2/monitor/health", timeout=10.0).raise_for_status()
    except httpx.HTTPError:
        return "api-server"
    states = {name: (part or {}).get("status") for name, part in answer.json().items()}
    wanted = ("metadatabase", "scheduler", "dag_processor", "triggerer")
    return ", ".join(name for name in wanted if states.get(name) != "healthy")


_SECONDS_TO_PARK = 5.0
_PAUSES_SECONDS = (0.5, 2.0, 5.0)
_REPEATABLE = frozenset({"GET", "PATCH"})


@dataclass(frozen=True)
class AirflowAccess:
    """The address of an Airflow, and the password of its user `admin`.

    Attributes:
        url: Base URL of the UI and the API, without a trailing slash.
        password: Never logged.
    """

    url: str
    password: str = field(repr=False)


class TaskState(BaseModel):
    """One task instance as the API reports it.

    Attributes:
        map_index: -1 for a task that is not mapped.
        label: The rendered map index; None where there is none.
        state: Airflow's state; None before it is scheduled.
        tries: How often it was started.
        seconds: How long its last try ran; None while it has not ended.
    """

    task_id: str
    map_index: int
    label: str | None = Field(alias="rendered_map_index")
    state: str | None
    tries: int = Field(alias="try_number")
    seconds: float | None = Field(alias="duration")


class AirflowClient:
    """Talks to one Airflow; a context manager.

    Raises:
        ConfigError: The API refused a request (wrong password, no such DAG); the message holds its answer.
        Transient: The API did not answer.
    """

    def __init__(self, access: AirflowAccess) -> None:
        self.access = access
        self._http = httpx.Client(base_url=access.url, timeout=60.0)
        body = {"username": USERNAME, "password": access.password}
        token = self.call("POST", "/auth/token", json=body)["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG, so that its runs start."""
        self.call("PATCH", f"/api/v2/dags/{_part(dag_id)}", json={"is_paused": False})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run and return its id; `conf` fills the DAG's parameters."""
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf or {})}
        answer = self.call("POST", f"/api/v2/dags/{_part(dag_id)}/dagRuns", json=body)
        return str(answer["dag_run_id"])

    def end_releases(self) -> None:
        """End the releases that are queued or under way, which a new one would wait for; what clears up still runs."""
        for run in self.call("GET", "/api/v2/dags/~/dagRuns", params={"state": ["queued", "running"]})["dag_runs"]:
            if run["dag_id"].startswith("release__"):
                self.call("PATCH", _run_path(run["dag_id"], run["dag_run_id"]), json={"state": "failed"})

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Airflow's state of a run: queued, running, success or failed."""
        return str(self.call("GET", _run_path(dag_id, run_id))["state"])

    def task_states(self, dag_id: str, run_id: str) -> list[TaskState]:
        """Every task instance of a run, in the order in which they started."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances"
        found = self.call("GET", path, params={"limit": 1000})["task_instances"]
        ordered = sorted(found, key=lambda one: (one["start_date"] or "~", one["task_id"], one["map_index"]))
        return [TaskState.model_validate(one) for one in ordered]

    def pending_approvals(self, dag_id: str, run_id: str) -> list[tuple[str, int]]:
        """Requests to a human that can be answered: task id and map index.

        A request counts only after it has been there for a few seconds. Airflow 3.3 mistakes an answer that comes
        before its scheduler has noticed the waiting task for a crash of that task, and asks again.
        """
        answer = self.call("GET", f"{_run_path(dag_id, run_id)}/hitlDetails", params={"response_received": False})
        settled = datetime.now(UTC) - timedelta(seconds=_SECONDS_TO_PARK)
        return [
            (detail["task_instance"]["task_id"], detail["task_instance"]["map_index"])
            for detail in answer["hitl_details"]
            if detail["task_instance"]["state"] == "deferred" and datetime.fromisoformat(detail["created_at"]) < settled
        ]

    def answer_approval(
        self, dag_id: str, run_id: str, task_id: str = "approve", *, approve: bool, map_index: int = -1
    ) -> None:
        """Answer a request with Approve or Reject."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}/{map_index}/hitlDetails"
        self.call("PATCH", path, json={"chosen_options": ["Approve" if approve else "Reject"], "params_input": {}})

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What a task returned, deserialized."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}/xcomEntries/return_value"
        return self.call("GET", path, params={"deserialize": True})["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, attempt: int = 1, map_index: int = -1) -> list[str]:
        """The lines of one try's log, as `LEVEL event`."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}/logs/{attempt}"
        answer = self.call("GET", path, params={"map_index": map_index, "full_content": True})
        return [f"{one.get('level', '').upper()} {one.get('event', '')}".strip() for one in answer["content"]]

    def import_errors(self) -> dict[str, str]:
        """What could not be parsed: the stack trace by file name."""
        found = self.call("GET", "/api/v2/importErrors")["import_errors"]
        return {str(error["filename"]): str(error["stack_trace"]) for error in found}

    def has_dag(self, dag_id: str) -> bool:
        """Whether Airflow knows the DAG, and its file was read well the last time."""
        answer = self._send("GET", f"/api/v2/dags/{_part(dag_id)}")
        return answer.status_code == httpx.codes.OK and not answer.json()["is_stale"]

    def call(self, method: str, path: str, **options: Any) -> Any:
        """What the API answers to a request, for what no method asks."""
        response = self._send(method, path, **options)
        if response.is_error:
            problem = f"Airflow answered {response.status_code} to {method} {path}: {response.text[:300]}"
            raise ConfigError(problem, where=self.access.url)
        return response.json()

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer; GET and PATCH are repeated while Airflow answers 500, as it does while its SQLite is locked."""
        pauses = iter(_PAUSES_SECONDS if method in _REPEATABLE else ())
        while True:
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                raise Transient(f"Airflow does not answer: {error!r}", where=self.access.url) from error
            if response.status_code != httpx.codes.INTERNAL_SERVER_ERROR or (pause := next(pauses, None)) is None:
                return response
            time.sleep(pause)


def _part(text: str) -> str:
    return quote(text, safe="")


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{_part(dag_id)}/dagRuns/{_part(run_id)}"
