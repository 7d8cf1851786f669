"""The release watch in a real Airflow: what a hub publishes starts a release, once, also past a killed triggerer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from real_airflow import RealAirflow, kill_triggerer, publish
from waiting import until

from llm_pipeline.demo.local_airflow import AirflowClient
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.watch_record import read_claim, read_status
from llm_pipeline.store import open_store

pytestmark = pytest.mark.slow

DAG = "release__watched"


@dataclass
class Scene:
    """A hub, an Airflow, and what tests do to them."""

    airflow: RealAirflow
    client: AirflowClient

    @property
    def store(self) -> Any:
        return open_store(load_release(self.airflow.watched.config).deployment.store)

    def publish(self, **changes: Any) -> str:
        return publish(self.airflow.hub, **changes)

    def words(self) -> str:
        status = read_status(self.store, "watched")
        return status.words if status else ""

    def runs(self) -> list[dict[str, Any]]:
        found = self.client.call("GET", f"/api/v2/dags/{DAG}/dagRuns", params={"order_by": "run_after"})
        return list(found["dag_runs"])

    def claimed_by(self, commit: str) -> str | None:
        claim = read_claim(self.store, "watched", commit)
        return claim.run if claim else None

    def resolved(self) -> list[str | None]:
        """The revisions that resolve stages were asked for, in their order."""
        jobs = self.airflow.watched.root / "work/jobs"
        paths = sorted(jobs.glob("*/resolve*/*/request.json"), key=os.path.getmtime)
        return [json.loads(path.read_text())["config"]["revision"] for path in paths]


@pytest.fixture(scope="module")
def scene(real_airflow) -> Iterator[Scene]:
    with AirflowClient(real_airflow.access) as client:
        until(lambda: client.has_dag(DAG))
        client.unpause(DAG)  # a watch begins when its DAG is not paused
        scene = Scene(real_airflow, client)
        until(lambda: "is where the watch starts from" in scene.words())
        assert scene.runs() == [], "the first look starts nothing"
        yield scene


def test_a_commit_of_documentation_starts_nothing_and_the_page_says_so(scene):
    scene.publish(readme=b"# Tiny, in other words")
    until(lambda: "changes nothing that counts" in scene.words())
    assert scene.runs() == []
    page = scene.client._send("GET", "/llm-pipeline/releases").text
    assert "Watched on the hub" in page
    assert "changes nothing that counts" in page


def test_a_commit_of_weights_starts_a_release_of_exactly_that_commit(scene):
    commit = scene.publish(weights=8192)
    run = until(scene.runs)[0]
    assert until(lambda: scene.claimed_by(commit)) == f"{DAG}/{run['dag_run_id']}"
    assert run["run_type"] == "asset_triggered"
    assert until(scene.resolved) == [commit]


def test_past_a_killed_triggerer_no_commit_is_released_twice_and_none_is_missed(scene):
    released = len(scene.runs())
    kill_triggerer(scene.airflow.home)
    commit = scene.publish(weights=12288)
    scene.airflow.start()
    until(lambda: scene.claimed_by(commit))
    until(lambda: len(scene.resolved()) == released + 1)
    assert scene.resolved()[-1] == commit
    until(lambda: "was released by run" in scene.words())
    assert len(scene.runs()) == released + 1
