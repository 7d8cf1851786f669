"""A whole Airflow with one worker slot and three containers: the triggerer is killed while they run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from real_airflow import Run, kill_triggerer, make_home
from test_deferral import put_in_containers
from waiting import until

from llm_pipeline.base.labels import LABEL_PREFIX
from llm_pipeline.demo.local_airflow import AirflowAccess, AirflowClient, start_airflow, stop_airflow

pytestmark = pytest.mark.thorough

DAGS = Path(__file__).parent / "dags_for_tests"
NAMES = ("kept", "marked", "cleared")


@dataclass
class Jobs:
    """An Airflow, the project of its DAG, and the engine that its stages run in."""

    home: Path
    port: int
    settings: dict[str, str]
    engine: Any
    project: Any

    def start(self) -> AirflowAccess:
        return start_airflow(self.home, self.port, settings=self.settings)

    def started(self, name: str) -> int:
        """How often a stage was started."""
        marker = self.project.root / f"{name}.started"
        return len(marker.read_text().splitlines()) if marker.exists() else 0

    def running(self) -> set[str]:
        """The stages whose containers run."""
        return {name for name in NAMES if self.engine.names(f"--filter=label={LABEL_PREFIX}subject={name}")}

    def end(self, *names: str) -> None:
        """Let stages end."""
        for name in names:
            (self.project.root / f"{name}.end").touch()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, make_project, empty_database, started_engine) -> Iterator[Jobs]:
    root = tmp_path_factory.mktemp("jobs")
    home = root / "airflow"
    make_home(home, empty_database)
    (root / "containers").mkdir()
    project = make_project(root / "containers")
    put_in_containers(project, started_engine)
    paths = {"until": "end", "file": "started", "hears": "said"}
    project.script(**{f"report/{n}": {key: f"{project.root}/{n}.{end}" for key, end in paths.items()} for n in NAMES})
    settings = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__PARALLELISM": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "PATH": f"{started_engine.program.parent}:{os.environ['PATH']}",
        "JOBS_PROJECTS": str(root),
    }
    airflow = Jobs(home, free_port(), settings, started_engine, project)
    try:
        airflow.start()
        yield airflow
    finally:
        stop_airflow(home)


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


def test_one_worker_slot_is_enough_for_all_and_each_stage_has_one_result_past_a_killed_triggerer(jobs, client):
    run = Run(client, "containers", client.trigger("containers"))
    until(lambda: set(states(run).values()) == {"deferred"}, 600)
    assert jobs.running() == {*NAMES}
    (jobs.project.root / "kept.said").touch()
    until(lambda: "INFO heard" in log(run, "kept"))
    kill_triggerer(jobs.home)
    jobs.start()
    for name in NAMES:
        until(lambda name=name: log(run, name).count(") starting") == 2)

    run.mark_failed("marked")
    until(lambda: jobs.running() == {"kept", "cleared"})
    body = {"dry_run": False, "task_ids": ["cleared"], "dag_run_id": run.run_id, "only_failed": False}
    client.call("POST", "/api/v2/dags/containers/clearTaskInstances", json=body)
    until(lambda: jobs.started("cleared") == 2)
    jobs.end("kept", "cleared")
    until(run.ended, 600)
    assert states(run) == {"kept": "success", "cleared": "success", "marked": "failed"}
    assert (jobs.started("kept"), jobs.started("marked"), jobs.running()) == (1, 1, set())
    told = [log(run, "kept").index(words) for words in ("a warning of the stage", "INFO heard", " made and measured:")]
    assert told == sorted(told)
