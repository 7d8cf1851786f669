"""A small client of Airflow's REST API: enough to trigger a release, follow it and answer its approval."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from llm_pipeline.base.errors import ConfigError, Transient

_SECONDS_TO_PARK = 5.0
_PAUSES_SECONDS = (0.5, 2.0, 5.0)
_REPEATABLE = frozenset({"GET", "PATCH"})


@dataclass(frozen=True)
class AirflowAccess:
    """The address of an Airflow, and a user of it.

    Attributes:
        url: Base URL of the UI and the API, without a trailing slash.
        username: User of the simple auth manager.
        password: Its password; never logged.
    """

    url: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"AirflowAccess(url={self.url!r}, username={self.username!r})"


@dataclass(frozen=True)
class TaskState:
    """One task instance as the API reports it.

    Attributes:
        map_index: -1 for a task that is not mapped.
        label: The rendered map index; empty when there is none.
        state: Airflow's state; None before it is scheduled.
        tries: How often it was started.
        seconds: How long its last try ran; None while it has not ended.
    """

    task_id: str
    map_index: int
    label: str
    state: str | None
    tries: int
    seconds: float | None


class AirflowClient:
    """Talks to one Airflow; a context manager.

    Raises:
        ConfigError: The API refused a request (wrong password, no such DAG); the message holds its answer.
        Transient: The API did not answer.
    """

    def __init__(self, access: AirflowAccess) -> None:
        self.access = access
        self._http = httpx.Client(base_url=access.url, timeout=60.0)
        self._log_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to Airflow."""
        self._http.close()

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG, so that its runs start."""
        self._call("PATCH", f"/api/v2/dags/{_part(dag_id)}", json={"is_paused": False})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run and return its id; `conf` fills the DAG's parameters."""
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf or {})}
        answer = self._call("POST", f"/api/v2/dags/{_part(dag_id)}/dagRuns", json=body)
        return str(answer["dag_run_id"])

    def end_releases(self) -> None:
        """End the releases that are queued or under way, which a new one would wait for; what clears up still runs."""
        for run in self._call("GET", "/api/v2/dags/~/dagRuns", params={"state": ["queued", "running"]})["dag_runs"]:
            if run["dag_id"].startswith("release__"):
                self._call("PATCH", _run_path(run["dag_id"], run["dag_run_id"]), json={"state": "failed"})

    def make_pool(self, name: str, slots: int) -> None:
        """Make a pool."""
        self._call("POST", "/api/v2/pools", json={"name": name, "slots": slots})

    def latest_run(self, dag_id: str) -> str:
        """Id of the run that was started last.

        Raises:
            ConfigError: The DAG has never run.
        """
        path = f"/api/v2/dags/{_part(dag_id)}/dagRuns"
        found = self._call("GET", path, params={"order_by": "-run_after", "limit": 1})["dag_runs"]
        if not found:
            raise ConfigError("the DAG has never run", where=dag_id)
        return str(found[0]["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Airflow's state of a run: queued, running, success or failed."""
        return str(self._call("GET", _run_path(dag_id, run_id))["state"])

    def task_states(self, dag_id: str, run_id: str) -> list[TaskState]:
        """Every task instance of a run, in the order in which they started."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances"
        found = self._call("GET", path, params={"limit": 1000})["task_instances"]
        ordered = sorted(found, key=lambda one: (one["start_date"] or "~", one["task_id"], one["map_index"]))
        return [_task_state(one) for one in ordered]

    def pending_approvals(self, dag_id: str, run_id: str) -> list[tuple[str, int, dict[str, Any]]]:
        """Requests to a human that can be answered: task id, map index and the request itself.

        A request counts only after it has been there for a few seconds. Airflow 3.3 mistakes an answer that comes
        before its scheduler has noticed the waiting task for a crash of that task, and asks again.
        """
        answer = self._call("GET", f"{_run_path(dag_id, run_id)}/hitlDetails", params={"response_received": False})
        settled = datetime.now(UTC) - timedelta(seconds=_SECONDS_TO_PARK)
        return [
            (detail["task_instance"]["task_id"], detail["task_instance"]["map_index"], detail)
            for detail in answer["hitl_details"]
            if detail["task_instance"]["state"] == "deferred" and datetime.fromisoformat(detail["created_at"]) < settled
        ]

    def answer_approval(
        self, dag_id: str, run_id: str, task_id: str = "approve", *, approve: bool, map_index: int = -1
    ) -> None:
        """Answer a request with Approve or Reject."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}/{map_index}/hitlDetails"
        self._call("PATCH", path, json={"chosen_options": ["Approve" if approve else "Reject"], "params_input": {}})

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What a task returned, deserialized."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}/xcomEntries/return_value"
        return self._call("GET", path, params={"deserialize": True})["value"]

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, attempt: int = 1, map_index: int = -1) -> list[str]:
        """The lines of one try's log, as `LEVEL event`."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}/logs/{attempt}"
        answer = self._call("GET", path, params={"map_index": map_index, "full_content": True})
        return [_log_line(entry) for entry in answer["content"]]

    def import_errors(self) -> dict[str, str]:
        """What could not be parsed: the stack trace by file name."""
        found = self._call("GET", "/api/v2/importErrors")["import_errors"]
        return {str(error["filename"]): str(error["stack_trace"]) for error in found}

    def has_dag(self, dag_id: str) -> bool:
        """Whether Airflow knows the DAG yet."""
        return self._send("GET", f"/api/v2/dags/{_part(dag_id)}").status_code == httpx.codes.OK

    def _log_in(self) -> None:
        body = {"username": self.access.username, "password": self.access.password}
        token = self._call("POST", "/auth/token", json=body)["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def _call(self, method: str, path: str, **options: Any) -> Any:
        response = self._send(method, path, **options)
        if response.is_error:
            raise ConfigError(
                f"Airflow answered {response.status_code} to {method} {path}: {response.text[:300]}",
                where=self.access.url,
            )
        return response.json()

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer; GET and PATCH are repeated while Airflow answers 500, as it does while its SQLite is locked."""
        for pause in (*_PAUSES_SECONDS, None) if method in _REPEATABLE else (None,):
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                raise Transient(f"Airflow does not answer: {error!r}", where=self.access.url) from error
            if response.status_code != httpx.codes.INTERNAL_SERVER_ERROR or pause is None:
                break
            time.sleep(pause)
        return response


def _part(text: str) -> str:
    return quote(text, safe="")


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{_part(dag_id)}/dagRuns/{_part(run_id)}"


def _task_state(found: Mapping[str, Any]) -> TaskState:
    return TaskState(
        task_id=found["task_id"],
        map_index=found["map_index"],
        label=found["rendered_map_index"] or "",
        state=found["state"],
        tries=found["try_number"],
        seconds=found["duration"],
    )


def _log_line(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return str(entry)
    return f"{str(entry.get('level', '')).upper()} {entry.get('event', '')}".strip()
