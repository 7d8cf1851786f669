"""The channel `mlflow`, against MLflow's own server where it is installed.

No environment of ours has it: its server is 27 packages of 411 MB, whose first start takes one to two minutes. By hand,
beside control:

    pip install --target DIR --no-deps mlflow==3.17.2 ...   # what `pip install --dry-run mlflow==3.17.2` lists
    PYTHONPATH=DIR .envs/control/bin/python -m pytest tests/notifications/test_mlflow.py
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from llm_pipeline.adapters.mlflow.adapter import ADAPTER
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.config.notifications import Notifications, wants_stages
from llm_pipeline.notifications import outbox
from llm_pipeline.notifications.channel import NotSent, channels, no_connections
from llm_pipeline.notifications.event import Origin
from llm_pipeline.notifications.happened import ended
from llm_pipeline.release.contract import StageResult

sys.path.insert(0, str(Path(__file__).parents[1]))

from store_history import GO, History

FIRST_PORT = 25_300
CHANNEL = TypeAdapter(Notifications).validate_python({"runs": {"kind": "mlflow", "experiment": "releases"}})
NO_GO = judge("slow", [Evidence(name="p99: time to first token", verdict=Verdict.NO_GO, measured=1.5, samples=9)])


def test_without_a_server_nothing_is_imported(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert list(channels(CHANNEL)) == []
    assert wants_stages(CHANNEL)
    assert "no MLFLOW_TRACKING_URI" in ADAPTER.probe(CHANNEL["runs"])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("mlflow.server", reason="MLflow's server (the package mlflow) is not installed; see above")
    root = tmp_path_factory.mktemp("mlflow")
    port = FIRST_PORT + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{root}/mlflow.db",
        "--artifacts-destination",
        str(root / "artifacts"),
    ]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=root, start_new_session=True)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 300
    try:
        while not answers(url):
            assert process.poll() is None, (root / "log").read_text()
            assert time.monotonic() < deadline, (root / "log").read_text()
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    except OSError:
        return False


@pytest.fixture
def releases(tmp_path, monkeypatch):
    """A deployment with the channel, in whose store releases are written, and what tells of their stages."""
    monkeypatch.setattr(outbox, "PAUSE_SECONDS", 0.0)
    history = History(tmp_path)
    history.deployment = history.deployment.model_copy(update={"notifications": CHANNEL})

    def tell(*results: StageResult) -> int:
        origin = Origin("here", results[0].release_id if results else "")
        events = [ended(origin, result) for result in results]
        return outbox.tell(history.store, history.deployment, no_connections, events=events)

    history.tell = tell
    return history


def finished(releases, release_id: str) -> list[StageResult]:
    results = [
        releases.stage(release_id, "accuracy", "fp8", judgement=GO),
        releases.stage(release_id, "load_test", "cpu", judgement=NO_GO),
    ]
    releases.report(release_id)
    return [*results, releases.stage(release_id, "report")]


def the_run(url: str, release_id: str):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=url)
    experiment = client.get_experiment_by_name("releases")
    found = client.search_runs([experiment.experiment_id], f"tags.`llm_pipeline.release` = '{release_id}'")
    assert len(found) == 1, "one run a release"
    return client, found[0]


def test_a_release_is_one_run_with_its_parameters_metrics_and_report(releases, server, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    release_id = releases.resolve(1)
    assert releases.tell(*finished(releases, release_id)) == 3
    client, run = the_run(server, release_id)
    assert run.data.params["model"] == "demo/tiny"
    assert run.data.params["cpu/engine"]
    assert run.data.metrics["accuracy/fp8/loss"] == 0.0
    assert run.data.metrics["load_test/cpu/p99_ time to first token"] == 1.5
    assert run.data.metrics["load_test/cpu/seconds"] == 1.0
    assert run.data.tags["load_test/cpu/verdict"] == "NO_GO"
    assert run.info.status == "FINISHED"
    report = client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))
    assert Path(report).read_bytes() == b"<html>"


def test_told_twice_and_run_again_it_is_still_one_run_with_each_measurement_once(releases, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    release_id = releases.resolve(2)
    results = finished(releases, release_id)
    releases.tell(*results)
    releases.store.delete_document("told/here.runs.json")  # it died before it wrote down what it had sent
    assert releases.tell() == 3
    client, run = the_run(server, release_id)
    assert len(client.get_metric_history(run.info.run_id, "accuracy/fp8/loss")) == 1
    releases.pass_days(1)
    releases.resolve(2)
    releases.tell(releases.stage(release_id, "accuracy", "fp8", judgement=GO))
    client, run = the_run(server, release_id)
    assert len(client.get_metric_history(run.info.run_id, "accuracy/fp8/loss")) == 2
    assert run.info.status == "RUNNING"


def test_a_server_that_is_away_holds_nothing_up_and_gets_it_later(releases, server, monkeypatch):
    release_id = releases.resolve(3)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with pytest.raises(NotSent, match="MLflow does not answer"):
        ADAPTER.probe(CHANNEL["runs"])
    assert releases.tell(*finished(releases, release_id)) == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert "experiment releases" in ADAPTER.probe(CHANNEL["runs"])
    assert releases.tell() == 3
    the_run(server, release_id)
