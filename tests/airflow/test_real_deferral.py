"""A whole Airflow with one worker slot and six containers: workers and triggerer are killed while they run."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker_engine import DockerEngine
from real_airflow import Run, make_home
from test_deferral import in_containers, put
from waiting import free_port, until

from llm_pipeline.base import detached
from llm_pipeline.base.labels import LABEL_PREFIX
from llm_pipeline.demo.local_airflow import AirflowAccess, AirflowClient, start_airflow, stop_airflow

pytestmark = pytest.mark.thorough

DAGS = Path(__file__).parent / "dags_for_tests"
KEPT = ("one", "two", "three")


@dataclass
class Jobs:
    """An Airflow, the project of its DAG, and the double of an engine that its stages run in."""

    home: Path
    port: int
    settings: dict[str, str]
    engine: Any
    project: Any

    def start(self) -> AirflowAccess:
        return start_airflow(self.home, self.port, settings=self.settings)

    def kill_triggerer(self) -> None:
        triggerer = detached.load(self.home / "processes" / "triggerer.json")
        os.killpg(triggerer.pid, signal.SIGKILL)
        until(lambda: not triggerer.session_alive)

    def started(self, name: str) -> int:
        """How often a stage was started."""
        marker = self.project.root / f"{name}.started"
        return len(marker.read_text().splitlines()) if marker.exists() else 0

    def running(self) -> set[str]:
        """The stages whose containers run."""
        containers = [self.engine.container(name) for name in self.engine.names()]
        return {one.options["Labels"][f"{LABEL_PREFIX}subject"] for one in containers if one.status == "running"}

    def end(self, *names: str) -> None:
        """Let stages end."""
        for name in names:
            (self.project.root / f"{name}.end").touch()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, make_project, empty_database) -> Iterator[Jobs]:
    root = tmp_path_factory.mktemp("jobs")
    home = root / "airflow"
    make_home(home, empty_database)
    (root / "engine").mkdir()
    engine = DockerEngine(root / "engine")
    (root / "containers").mkdir()
    project = make_project(root / "containers")
    put(project, in_containers)
    paths = {"until": "end", "file": "started", "hears": "said"}
    names = (*KEPT, "marked", "cleared", "overdue")
    project.script(**{f"report/{n}": {key: f"{project.root}/{n}.{end}" for key, end in paths.items()} for n in names})
    settings = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__PARALLELISM": "1",
        "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "5",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "DOCKER_HOST": f"unix://{engine.socket}",
        "JOBS_PROJECTS": str(root),
    }
    airflow = Jobs(home, free_port(), settings, engine, project)
    try:
        airflow.start()
        yield airflow
    finally:
        stop_airflow(home)
        engine.close()


@pytest.fixture(scope="module")
def client(jobs) -> Iterator[AirflowClient]:
    with AirflowClient(jobs.start()) as client:
        until(lambda: client.has_dag("containers"))
        client.unpause("containers")
        yield client


def states(run: Run) -> dict[str, str | None]:
    return {one.task_id: one.state for one in run.client.task_states(run.dag_id, run.run_id)}


def log(run: Run, task_id: str) -> str:
    """The log of the last try, as its page shows it."""
    return "\n".join(run.log(task_id, max(1, run.task(task_id).tries)))


def kill_a_worker(jobs: Jobs, run: Run) -> str:
    """Kill the process of a task that has started its container and is not deferred yet; returns the task's id."""

    def killed() -> str:
        assert not run.ended()
        for name, state in states(run).items():
            if state == "running" and name in KEPT and jobs.started(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(run.details(name)["pid"], signal.SIGKILL)
                    return name
        return ""

    return until(killed)


@pytest.fixture(scope="module")
def containers(jobs, client) -> Run:
    """A run whose worker and triggerer were killed, and of which one task was marked failed and one cleared."""
    run = Run(client, "containers", client.trigger("containers"))
    killed = kill_a_worker(jobs, run)
    names = {*KEPT, "marked", "cleared"}
    until(lambda: {name for name, state in states(run).items() if state == "deferred"} >= names, 600)
    assert jobs.running() >= names
    assert run.task(killed).tries == 2

    (jobs.project.root / "two.said").touch()
    until(lambda: "INFO heard" in log(run, "two"))
    jobs.kill_triggerer()
    jobs.start()
    for name in ("two", "marked", "cleared"):
        until(lambda name=name: "this triggerer took over" in log(run, name))

    run.mark_failed("marked")
    until(lambda: "marked" not in jobs.running())
    assert jobs.running() >= names - {"marked"}
    body = {"dry_run": False, "task_ids": ["cleared"], "dag_run_id": run.run_id, "only_failed": False}
    client.call("POST", "/api/v2/dags/containers/clearTaskInstances", json=body)
    until(lambda: jobs.started("cleared") == 2)
    jobs.end(*KEPT, "cleared")
    until(run.ended, 600)
    return run


def test_one_worker_slot_is_enough_for_six_containers_and_each_stage_has_one_result(containers, jobs):
    assert states(containers) == {
        "one": "success", "two": "success", "three": "success", "cleared": "success",
        "marked": "failed", "overdue": "failed",
    }  # fmt: skip
    assert [jobs.started(name) for name in (*KEPT, "marked", "overdue")] == [1] * 5
    assert not jobs.running()


def test_the_log_of_a_deferred_task_shows_what_its_stage_says(containers):
    told_by_two = log(containers, "two")
    told = ("WARNING a warning of the stage  subject=two", "INFO heard", " made and measured:")
    places = [told_by_two.index(words) for words in told]
    assert places == sorted(places)


def test_a_stage_that_is_overdue_is_stopped(containers):
    assert "Task failed with exception" in log(containers, "overdue")
