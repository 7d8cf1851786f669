"""The release watch in a real Airflow: what a hub publishes starts a release, once, also past a killed triggerer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from llm_pipeline.base import detached
from llm_pipeline.config.loading import load_release
from llm_pipeline.demo.airflow_client import AirflowClient
from llm_pipeline.demo.airflow_services import start_airflow, stop_airflow
from llm_pipeline.demo.hub_repository import publish_revision
from llm_pipeline.release.watch_record import read_claim, read_status
from llm_pipeline.store import open_store

from ..hub.conftest import safetensors_bytes  # noqa: TID252

pytestmark = pytest.mark.slow

DAG = "release__tiny"
SECRET = "whsec-canary-of-the-real-watch"
SETTINGS = {
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",  # a watch begins when its DAG is not paused
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",  # how soon a dead triggerer's triggers are taken over
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "LLM_PIPELINE_WEBHOOK_SECRET": SECRET,
}
WATCH = "watch: { poll_minutes: 60, quiet_minutes: 0 }\n"  # so that only the webhook, or a restart, makes it look


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def until(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
    return found


@dataclass
class Scene:
    """A hub, an Airflow, and what tests do to them."""

    root: Path
    release: Any
    port: int
    client: AirflowClient

    @property
    def store(self) -> Any:
        return open_store(load_release(self.release.config).deployment.store)

    def publish(self, **changes: bytes) -> str:
        """Publish the model; `changes` replace files, `__` standing for a dot."""
        return publish(self.root / "hub", **changes)

    def call_webhook(self, secret: str = SECRET) -> int:
        body = {"repo": {"type": "model", "name": "demo/tiny"}}
        url = f"{self.client.access.url}/llm-pipeline/webhooks/hub"
        return httpx.post(url, json=body, headers={"X-Webhook-Secret": secret}).status_code

    def words(self) -> str:
        status = read_status(self.store, "tiny")
        return status.words if status else ""

    def runs(self) -> list[dict[str, Any]]:
        found = self.client._call("GET", f"/api/v2/dags/{DAG}/dagRuns", params={"order_by": "run_after"})
        return list(found["dag_runs"])

    def claimed_by(self, commit: str) -> str | None:
        claim = read_claim(self.store, "tiny", commit)
        return claim.run if claim else None

    def resolved(self) -> list[str | None]:
        """The revisions that resolve stages were asked for, in their order."""
        paths = sorted((self.release.root / "work/jobs").glob("*/resolve*/*/request.json"), key=os.path.getmtime)
        return [json.loads(path.read_text())["config"]["revision"] for path in paths]

    def start(self) -> None:
        start_airflow(self.root / "airflow", self.port, releases=self.release.config.parent, settings=SETTINGS)

    def kill(self, component: str) -> None:
        process = detached.load(self.root / f"airflow/processes/{component}.json")
        os.killpg(process.pid, signal.SIGKILL)
        until(lambda: not process.group_alive)


def publish(hub: Path, **changes: bytes) -> str:
    directory = hub.parent / "source"
    directory.mkdir(exist_ok=True)
    files = {"model.safetensors": safetensors_bytes(4096), "config.json": b"{}", "README.md": b"# Tiny"}
    for name, data in (files | {name.replace("__", "."): data for name, data in changes.items()}).items():
        (directory / name).write_bytes(data)
    return publish_revision(hub, "demo/tiny", directory, "upload")


@pytest.fixture(scope="module")
def scene(tmp_path_factory, make_project) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("watch")
    publish(root / "hub")
    port = free_port()
    arguments = ["-m", "llm_pipeline.demo.hub_server", "--root", str(root / "hub"), "--port", str(port)]
    server = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    release = make_project(tmp_path_factory.mktemp("release"))
    deployment = release.root / "configs/deployments/here.yaml"
    deployment.write_text(deployment.read_text() + f"hub: {{ endpoint: 'http://127.0.0.1:{port}' }}\n")
    release.config.write_text(release.config.read_text() + WATCH)
    release.script(download={"error": "terminal"})  # what comes after the first stage is other tests' matter
    airflow_port = free_port()
    access = start_airflow(root / "airflow", airflow_port, releases=release.config.parent, settings=SETTINGS)
    try:
        with AirflowClient(access) as client:
            scene = Scene(root, release, airflow_port, client)
            yield scene
            for component in ("api-server", "scheduler", "dag-processor", "triggerer"):  # no orderly end is needed
                scene.kill(component)
    finally:
        stop_airflow(root / "airflow")
        server.kill()
        server.wait()


def test_the_first_look_starts_nothing(scene):
    until(lambda: "is where the watch starts from" in scene.words())
    assert scene.runs() == []


def test_a_webhook_with_a_wrong_secret_is_refused_though_no_route_asks_for_a_user(scene):
    assert scene.call_webhook("wrong") == 403
    assert scene.call_webhook("") == 403


def test_a_commit_of_documentation_starts_nothing_and_the_page_says_so(scene):
    scene.publish(README__md=b"# Tiny, in other words")
    assert scene.call_webhook() == 202
    until(lambda: "changes nothing that counts" in scene.words())
    assert scene.runs() == []
    page = scene.client._send("GET", "/llm-pipeline/releases").text
    assert "Watched on the hub" in page
    assert "README.md" in page


def test_a_commit_of_weights_starts_a_release_of_exactly_that_commit(scene):
    commit = scene.publish(model__safetensors=safetensors_bytes(8192))
    scene.call_webhook()
    run = until(scene.runs)[0]
    assert until(lambda: scene.claimed_by(commit)) == f"{DAG}/{run['dag_run_id']}"
    assert run["run_type"] == "asset_triggered"
    assert until(scene.resolved) == [commit]


def test_past_a_killed_triggerer_no_commit_is_released_twice_and_none_is_missed(scene):
    scene.kill("triggerer")
    commit = scene.publish(model__safetensors=safetensors_bytes(12288))
    scene.start()
    until(lambda: scene.claimed_by(commit))
    until(lambda: len(scene.resolved()) == 2)
    assert scene.resolved()[-1] == commit
    until(lambda: scene.call_webhook() and "was released by run" in scene.words())
    assert len(scene.runs()) == 2
