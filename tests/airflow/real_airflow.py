"""One Airflow with all its services for all tests that need one: each start takes 40 s of a core."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from free_ports import free_port
from safetensors_files import write_safetensors
from waiting import until

from llm_pipeline.base import detached
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.demo.local_airflow import AirflowAccess, AirflowClient, TaskState, start_airflow, stop_airflow

if TYPE_CHECKING:
    from .conftest import Project

PORT = 18591
SETTINGS = {
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,nobody:",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",  # how soon a dead triggerer's triggers are taken over
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
}
_WATCH = "watch: { poll_minutes: 0.05, quiet_minutes: 0 }\n"


@dataclass(frozen=True)
class RealAirflow:
    """A running Airflow and its releases.

    Attributes:
        home: Airflow's directory.
        access: Where it answers.
        release: The releases `tiny` and `one_target`, of two targets and of one; a person approves.
        watched: The release `watched`, started by what the hub publishes; its download fails.
        hub: The directory of the hub's repositories.
    """

    home: Path
    access: AirflowAccess
    release: Project
    watched: Project
    hub: Path

    def start(self) -> AirflowAccess:
        """Start what does not run."""
        return start_airflow(self.home, PORT, releases=self.release.config.parent, settings=SETTINGS)

    def token(self, user: str) -> dict[str, str]:
        """The headers of a user who is logged in."""
        password = json.loads((self.home / "passwords.json").read_text())[user]
        answer = httpx.post(f"{self.access.url}/auth/token", json={"username": user, "password": password})
        return {"Authorization": f"Bearer {answer.json()['access_token']}"}


@dataclass(frozen=True)
class Run:
    """A run of a DAG, and what its users see and do; tasks that are not mapped have the index -1."""

    client: AirflowClient
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"

    @property
    def state(self) -> str:
        return self.client.run_state(self.dag_id, self.run_id)

    def task(self, task_id: str, index: int = -1) -> TaskState:
        states = self.client.task_states(self.dag_id, self.run_id)
        return next(one for one in states if (one.task_id, one.map_index) == (task_id, index))

    def details(self, task_id: str, index: int = -1) -> dict[str, Any]:
        return self.client.call("GET", self._path(task_id, index))

    def mark_failed(self, task_id: str, index: int = -1) -> None:
        self.client.call("PATCH", self._path(task_id, index), json={"new_state": "failed"})

    def log(self, task_id: str, attempt: int, index: int = -1) -> list[str]:
        return self.client.task_log(self.dag_id, self.run_id, task_id, attempt=attempt, map_index=index)

    def ended(self) -> bool:
        return self.state in ("success", "failed")

    def _path(self, task_id: str, index: int) -> str:
        return f"{self.path}/taskInstances/{task_id}" + (f"/{index}" if index >= 0 else "")


@contextmanager
def running(root: Path, make_project: Callable[..., Project], empty_database: Path) -> Iterator[RealAirflow]:
    """An Airflow below `root`, with a hub of its own."""
    home, hub = root / "airflow", root / "hub"
    for directory in (root / "release", root / "watched"):
        directory.mkdir()
    make_home(home, empty_database)
    publish(hub)
    port = free_port()
    command = [sys.executable, "-m", "llm_pipeline.demo.hub", "--root", str(hub), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    release = _release(make_project(root / "release", approval=True))
    watched = _watched(release, root / "watched", f"http://127.0.0.1:{port}")
    airflow = RealAirflow(home=home, access=AirflowAccess("", ""), release=release, watched=watched, hub=hub)
    try:
        yield replace(airflow, access=airflow.start())
    finally:
        stop_airflow(home)
        server.kill()
        server.wait()


def kill_triggerer(home: Path) -> None:
    process = detached.load(home / "processes/triggerer.json")
    os.killpg(process.pid, signal.SIGKILL)
    until(lambda: not process.session_alive)


def make_home(home: Path, empty_database: Path) -> None:
    """A directory for an Airflow, whose database is made already."""
    home.mkdir()
    shutil.copyfile(empty_database, home / "airflow.db")
    (home / "migrated").write_text(version("apache-airflow"))


def publish(hub: Path, *, weights: int = 4096, readme: bytes = b"# Tiny") -> str:
    """Publish the model, with so many bytes of weights; returns the commit."""
    directory = hub.parent / "source"
    directory.mkdir(exist_ok=True)
    write_safetensors(directory / "model.safetensors", {"weight": ("U8", [weights], b"")})
    (directory / "config.json").write_text("{}")
    (directory / "README.md").write_bytes(readme)
    return publish_revision(hub, "demo/tiny", directory, "upload")


def _release(project: Project) -> Project:
    project.edit("policies/quick", "[5, 100]", "[5, 100], approve_before_percent: [100]")
    one_target = project.config.read_text().replace("[cpu-a, cpu-b]", "[cpu-a]")
    project.config.with_name("one_target.yaml").write_text(one_target)
    return project


def _watched(release: Project, root: Path, hub_endpoint: str) -> Project:
    shutil.copy(release.root / "python", root)
    deployments = release.root / "configs/deployments"
    text = (deployments / "here.yaml").read_text().replace(str(release.root), str(root))
    (deployments / "watched.yaml").write_text(f"{text}hub: {{ endpoint: '{hub_endpoint}' }}\n")
    config = release.config.with_name("watched.yaml")
    config.write_text(release.config.read_text().replace("deployment: here", "deployment: watched") + _WATCH)
    watched = replace(release, root=root, config=config)
    watched.script(download={"error": "terminal"})  # what comes after the first stage is other tests' matter
    return watched
