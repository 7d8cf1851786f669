"""A release as a run of MLflow, in a directory. No environment of ours has MLflow. By hand, beside control:

pip install --target DIR mlflow-skinny
PYTHONPATH=DIR .envs/control/bin/python -m pytest tests/notifications/test_mlflow.py
"""

from __future__ import annotations

import pytest
from store_history import GO, History

from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.notifications.mlflow_run import keep_in_mlflow

NO_GO = judge("slow", [Evidence(name="p99: time to first token", verdict=Verdict.NO_GO, measured=1.5, samples=9)])


def test_without_a_server_nothing_is_imported(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert keep_in_mlflow(None, "releases", "r") is None


def test_a_release_is_one_run_however_often_it_is_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed; see above")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/runs")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    history = History(tmp_path)
    release_id = history.resolve(1)
    history.stage(release_id, "accuracy", "fp8", judgement=GO)
    history.stage(release_id, "load_test", "cpu", judgement=NO_GO)
    history.report(release_id)
    keep_in_mlflow(history.store, "releases", release_id)
    run_id = keep_in_mlflow(history.store, "releases", release_id)
    client = mlflow.MlflowClient(tracking_uri=f"file://{tmp_path}/runs")
    experiment = client.get_experiment_by_name("releases")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.status, run.info.run_name) == (run_id, "FINISHED", release_id)
    assert run.data.tags["load_test/cpu/verdict"] == "NO_GO"
    assert run.data.metrics["load_test/cpu/p99_ time to first token"] == 1.5
    assert run.data.params["config"] == "tiny"
    assert [file.path for file in client.list_artifacts(run_id)] == ["report.html"]
