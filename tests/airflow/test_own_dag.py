"""What others build on: a release as a part of their DAG, and assets that start their DAGs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from airflow.models.asset import AssetEvent, AssetModel
from airflow.sdk import DAG
from airflow.utils.session import create_session
from llm_pipeline_airflow.assets import live_model
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.task_endings import ReleaseNotifier
from place_here import pointer, serve
from sqlalchemy import select

from llm_pipeline.store import open_store

pytestmark = pytest.mark.slow
DAGS = Path(__file__).parent / "own_dags"
RELEASE = "one-01234567-00000000"


@pytest.fixture
def weekly(project, airflow_database, in_process, monkeypatch) -> DAG:
    """The DAG that wraps a release of one recipe on one target."""
    text = project.config.read_text().replace("[cpu-a, cpu-b]", "[cpu-a]").replace("[small, large]", "[small]")
    project.config.with_name("one.yaml").write_text(text)
    monkeypatch.setenv("OWN_RELEASE", str(project.config.with_name("one.yaml")))
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundle = {"name": "own", "classpath": local, "kwargs": {"path": str(DAGS)}}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    return runpy.run_path(str(DAGS / "weekly.py"))["weekly"]


def test_a_release_in_ones_own_dag_runs_between_its_tasks_and_tells_by_an_asset_what_went_live(weekly, project):
    assert {"note", "revision"} <= set(weekly.params)
    assert weekly.tags == {"mine", "release__one"}
    assert weekly.get_task("promotion_1.settle").owner == "llm-pipeline"
    assert len(weekly.get_task("download").on_failure_callback) == 2
    store = open_store(f"file://{project.root}/store")  # the stages do no work in tests
    serve(store, "demo/tiny", "cpu-a", pointer(RELEASE, recipe="small"))
    run = weekly.test()
    assert run.state == "success"
    tasks = sorted((ti for ti in run.get_task_instances() if ti.start_date), key=lambda ti: ti.start_date)
    order = [ti.task_id for ti in tasks]
    assert (order[0], order[1]) == ("refresh", "claim")
    assert order.index("promotion_1.settle") < order.index("announce")
    assert ("promotion_1.rollback", "skipped") in {(ti.task_id, str(ti.state)) for ti in tasks}
    with create_session() as session:
        of_place = select(AssetEvent.extra).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        uri = live_model("here", "demo/tiny", "cpu-a").uri  # of other tests' releases, too
        (event,) = session.scalars(of_place.where(AssetModel.uri == uri, AssetEvent.source_dag_id == "weekly"))
    assert (event["happened"], event["release"], event["recipe"]) == ("promoted", RELEASE, "small")
    assert event["commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert event["metrics"]["load_test"]["bytes"] == 1005


def test_options_of_a_release_s_dag_may_be_others(project):
    def note(context) -> None:
        """Somebody's own callback."""

    dag = release_dag(project.config, schedule="@daily", default_args={"on_failure_callback": note, "retries": 1})
    quantize = dag.get_task("recipes_1.quantize")
    assert quantize.retries == 1
    first, second = quantize.on_failure_callback
    assert isinstance(first, ReleaseNotifier)
    assert second is note
