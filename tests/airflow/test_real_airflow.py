"""One Airflow with all its services, and what only shows there: killed workers, killed tasks, logins, the way out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from llm_pipeline.base import detached
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.approvals import read_approval
from llm_pipeline.demo.airflow_client import AirflowAccess, AirflowClient
from llm_pipeline.demo.airflow_services import read_access, start_airflow, stop_airflow
from llm_pipeline.store import open_store
from llm_pipeline.store.pointer_writing import write_pointers
from llm_pipeline.store.pointers import Pointer, Pointers

pytestmark = pytest.mark.slow

DAG, DAG_OF_ONE_TARGET = "release__tiny", "release__one_target"
PORT = 18591
USERS = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,nobody:"}


@pytest.fixture(scope="module")
def release(tmp_path_factory, make_project):
    project = make_project(tmp_path_factory.mktemp("release"), approval=True)
    policy = project.root / "configs/policies/quick.yaml"
    policy.write_text(policy.read_text().replace("[5, 100]", "[5, 100], approve_before_percent: [100]"))
    one_target = project.config.read_text().replace("[cpu-a, cpu-b]", "[cpu-a]")
    project.config.with_name("one_target.yaml").write_text(one_target)
    return project


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def access(home, release) -> Iterator[AirflowAccess]:
    yield start_airflow(home, PORT, releases=release.config.parent, settings=USERS)
    stop_airflow(home)


@pytest.fixture
def client(access, release) -> Iterator[AirflowClient]:
    shutil.rmtree(release.root / "store", ignore_errors=True)  # nothing to reuse
    release.script()
    with AirflowClient(access) as client:
        for dag_id in (DAG, DAG_OF_ONE_TARGET):
            until(lambda dag_id=dag_id: client.has_dag(dag_id))
            client.unpause(dag_id)
        yield client


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.3)


@dataclass(frozen=True)
class Run:
    """A run of a DAG, and what its users see and do."""

    client: AirflowClient
    dag_id: str
    run_id: str

    def task(self, task_id: str, index: int):
        states = self.client.task_states(self.dag_id, self.run_id)
        return next((one for one in states if (one.task_id, one.map_index) == (task_id, index)), None)

    def details(self, task_id: str, index: int) -> dict[str, Any]:
        return self.client._call("GET", self._path(task_id, index))

    def mark_failed(self, task_id: str, index: int) -> None:
        self.client._call("PATCH", self._path(task_id, index), json={"new_state": "failed"})

    def log(self, task_id: str, attempt: int) -> list[str]:
        return self.client.task_log(self.dag_id, self.run_id, task_id, attempt=attempt, map_index=0)

    def finish(self, *, approve: bool, denied: tuple[str, ...] = ()) -> str:
        """Answer what is asked until the run has ended; its state."""

        def ended() -> bool:
            for task_id, index, _ in self.client.pending_approvals(self.dag_id, self.run_id):
                yes = approve and task_id not in denied
                self.client.answer_approval(self.dag_id, self.run_id, task_id, map_index=index, approve=yes)
            return self.client.run_state(self.dag_id, self.run_id) in ("success", "failed")

        until(ended, 900)
        return self.client.run_state(self.dag_id, self.run_id)

    def _path(self, task_id: str, index: int) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/{task_id}/{index}"


def trigger(client: AirflowClient, dag_id: str) -> Run:
    return Run(client, dag_id, client.trigger(dag_id))


def started(marker: Path) -> bool:
    return marker.exists() and marker.read_text() != ""


def test_a_killed_worker_finds_its_stage_again_and_a_rejection_moves_no_traffic(client, release, tmp_path):
    marker, found_again = tmp_path / "started", tmp_path / "found again"
    release.script(**{"quantize/small": {"until": str(found_again), "file": str(marker)}})
    run = trigger(client, DAG_OF_ONE_TARGET)
    until(lambda: started(marker))
    os.kill(run.details("recipes_1.quantize", 0)["pid"], signal.SIGKILL)
    until(lambda: (run.task("recipes_1.quantize", 0).tries, run.task("recipes_1.quantize", 0).state) == (2, "running"))
    until(
        lambda: any(
            "the stage of an earlier attempt is still running" in line for line in run.log("recipes_1.quantize", 2)
        )
    )
    found_again.touch()

    assert run.finish(approve=False) == "success"
    quantize = run.task("recipes_1.quantize", 0)
    assert (quantize.state, quantize.tries) == ("success", 2)
    assert marker.read_text().splitlines() == ["started"]
    assert "WARNING a warning of the stage  subject=small" in run.log("recipes_1.quantize", 2)
    passed_over = run.details("recipes_2.quantize", 0)
    assert (passed_over["state"], passed_over["rendered_map_index"]) == ("skipped", "large · passed over")
    log = run.log("recipes_2.quantize", 1)
    assert any("large is skipped: a cheaper recipe passed (small)" in line for line in log)
    assert run.task("promotion_1.canary_5", 0).state == "skipped"
    assert run.task("report", -1).state == "success"


def test_a_task_that_is_marked_failed_takes_its_stage_with_it(client, release, tmp_path):
    marker = tmp_path / "started"
    release.script(**{"quantize/small": {"seconds": 300, "file": str(marker)}, "quantize/large": {"error": "terminal"}})
    run = trigger(client, DAG_OF_ONE_TARGET)
    until(lambda: started(marker))
    records = (release.root / "work" / "jobs").glob("*/quantize.small/*/process.json")
    process = detached.load(max(records, key=lambda path: path.stat().st_mtime))
    assert process.group_alive
    run.mark_failed("recipes_1.quantize", 0)
    until(lambda: not process.group_alive)
    assert run.finish(approve=True) == "failed"


def test_a_person_is_asked_between_two_steps_and_a_denial_rolls_the_canary_back(client, release):
    store = open_store(f"file://{release.root}/store")
    served = ArtifactRef(kind="model_repository", digest="a" * 64)
    old = Pointer(release_id="old", repository=served, slot="blue", recipe="none", promoted_at=datetime.now(UTC))
    write_pointers(store, "demo/tiny", "cpu-a", Pointers(production=old), None)
    run = trigger(client, DAG_OF_ONE_TARGET)
    assert run.finish(approve=True, denied=("promotion_1.approve_100",)) == "failed"
    states = {name: run.task(f"promotion_1.{name}", 0).state for name in ("canary_5", "approve_100", "canary_100")}
    assert states == {"canary_5": "success", "approve_100": "failed", "canary_100": "upstream_failed"}
    assert run.task("promotion_1.rollback", 0).state == "success"
    assert run.details("promotion_1.approve_100", 0)["rendered_map_index"] == "cpu-a"
    asked = read_approval(store, client.xcom(DAG_OF_ONE_TARGET, run.run_id, "resolve"), "cpu-a", 100)
    assert (asked.answer, asked.by) == ("denied", "admin")


def test_the_report_is_shown_to_who_may_read_the_dag_and_to_nobody_else(client, access, home):
    run_id = client.latest_run(DAG_OF_ONE_TARGET)
    report = f"{access.url}/llm-pipeline/dags/{DAG_OF_ONE_TARGET}/runs/{run_id}/report"
    assert httpx.get(report).status_code == 401
    assert httpx.get(f"{access.url}/llm-pipeline/releases").status_code == 401

    nobody = token(access.url, "nobody", home)
    assert httpx.get(report, headers=nobody).status_code == 403
    assert "release__" in httpx.get(f"{access.url}/llm-pipeline/releases", headers=nobody).text

    admin = token(access.url, "admin", home)
    unknown = httpx.get(report.replace(run_id, "no-such-<run>"), headers=admin)
    assert unknown.status_code == 404
    assert "no-such-<run>" not in unknown.text
    assert httpx.get(report.replace(DAG_OF_ONE_TARGET, "no_such_dag"), headers=admin).status_code == 404


@pytest.mark.parametrize("dag_id", [DAG_OF_ONE_TARGET, pytest.param(DAG, marks=pytest.mark.thorough)])
def test_a_reports_page_runs_no_script_and_the_releases_page_lists_it(client, access, home, release, dag_id):
    run = trigger(client, dag_id)
    assert run.finish(approve=True) == "success"
    admin = token(access.url, "admin", home)
    report = httpx.get(f"{access.url}/llm-pipeline/dags/{dag_id}/runs/{run.run_id}/report", headers=admin)
    assert report.status_code == 200
    assert "the report" in report.text
    assert "default-src 'none'" in report.headers["content-security-policy"]
    assert "script" not in report.headers["content-security-policy"]
    listed = httpx.get(f"{access.url}/llm-pipeline/releases", headers=admin).text
    assert f"{dag_id.removeprefix('release__')}-01234567-00000000" in listed
    assert '<td class="GO">GO</td><td>settle cpu-' in listed


def token(url: str, user: str, home: Path) -> dict[str, str]:
    password = json.loads((home / "passwords.json").read_text())[user]
    answer = httpx.post(f"{url}/auth/token", json={"username": user, "password": password})
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def test_a_second_start_finds_the_running_airflow(access, home, release):
    before = detached.load(home / "processes" / "scheduler.json")
    assert "llm_pipeline.demo.airflow_process" in before.command  # whose forks, the tasks, import little
    again = start_airflow(home, PORT, releases=release.config.parent, settings=USERS)
    assert again == access
    assert detached.load(home / "processes" / "scheduler.json") == before


def test_what_is_secret_is_readable_for_its_owner_only(access, home):
    for name in ("passwords.json", "keys.json"):
        assert (home / name).stat().st_mode & 0o777 == 0o600
    assert access.password not in repr(access)


def test_nothing_is_left_after_the_stop(access, home):
    stop_airflow(home)
    assert processes_of(home) == []
    assert not list((home / "processes").iterdir())
    with pytest.raises(Transient):
        AirflowClient(access)
    stop_airflow(home)  # again is fine


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", PORT + 1))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port {PORT + 1} is taken"):
            start_airflow(tmp_path, PORT + 1)


def test_no_access_is_known_before_a_start(tmp_path):
    with pytest.raises(ConfigError, match="no Airflow was started here"):
        read_access(tmp_path, PORT)


def processes_of(home: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"AIRFLOW_HOME={home}".encode() in environment:
                found.append(int(entry.name))
    return found
