from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta

import pytest
from airflow.models.dagrun import DagRun
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.store import open_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def release(tmp_path_factory, make_project, airflow_database, in_process) -> Callable[..., DagRun]:
    """Runs the DAG and its stages in this process; `fresh` forgets what was computed before."""
    project = make_project(tmp_path_factory.mktemp("release"))

    def run(script: dict, *, fresh: bool) -> DagRun:
        project.script(**script)
        if fresh:
            shutil.rmtree(project.root / "store", ignore_errors=True)
        return release_dag(project.config).test()

    run.config, run.store = project.config, open_store(f"file://{project.root}/store")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
        environment.setattr("llm_pipeline_airflow.task_endings._FIRST_DELAY", timedelta(seconds=1))
        yield run


@pytest.fixture(scope="module")
def promoted(release, told) -> DagRun:
    return release({"accuracy/small": {"verdict": "NO_GO"}, "download": {"error": "transient"}}, fresh=True)


@pytest.fixture(scope="module")
def stopped(release, promoted) -> DagRun:
    script = {"staging/cpu-a": {"verdict": "NO_GO"}, "canary/cpu-b:100": {"verdict": "NO_GO"}}
    return release(script, fresh=False)


def states(run: DagRun) -> dict[tuple[str, int], str]:
    return {(ti.task_id, ti.map_index): str(ti.state) for ti in run.get_task_instances()}


def labels(run: DagRun) -> dict[tuple[str, int], str]:
    return {(ti.task_id, ti.map_index): ti.rendered_map_index for ti in run.get_task_instances()}


def tries(run: DagRun) -> dict[str, int]:
    return {ti.task_id: ti.try_number for ti in run.get_task_instances()}


def test_one_failed_recipe_does_not_stop_the_release_and_a_transient_error_is_tried_again(promoted):
    seen, labelled = states(promoted), labels(promoted)
    assert promoted.state == "success"
    assert (seen["recipes_1.accuracy", 0], seen["recipes_2.accuracy", 0]) == ("failed", "success")
    assert {seen[f"promotion_{number}.settle", 0] for number in (1, 2)} == {"success"}
    assert (tries(promoted)["download"], tries(promoted)["baseline"]) == (2, 1)
    assert labelled["recipes_1.accuracy", 0] == "small · NO_GO"
    assert labelled["recipes_2.accuracy", 0] == "large · GO"
    assert labelled["targets.build", 1] == "cpu-b"


def test_a_failed_gate_stops_its_target_only_and_its_server_and_a_failed_canary_is_rolled_back(stopped):
    ends = {
        ("targets.staging", 0): "failed",
        ("targets.load_test", 0): "upstream_failed",
        ("targets.staging_down", 0): "success",
        ("approve", -1): "success",
        ("promotion_1.canary_5", 0): "failed",
        ("promotion_1.settle", 0): "upstream_failed",
        ("promotion_2.canary_5", 0): "success",
        ("promotion_2.canary_100", 0): "failed",
        ("promotion_2.settle", 0): "upstream_failed",
        ("promotion_2.rollback", 0): "success",
    }
    seen = states(stopped)
    assert {key: seen[key] for key in ends} == ends
    assert stopped.state == "failed"


def test_people_are_told_once(promoted, told):
    release_id = "tiny-01234567-00000000"
    titles = told.titles[: told.titles.index(f"Load test gate cpu-b of {release_id}: GO") + 1]
    assert titles.count(f"Download of {release_id}: failed, and is tried again") == 1
    assert titles.count(f"Accuracy gate small of {release_id}: NO_GO") == 1
    assert not [title for title in titles if title.endswith(": failed")]


def test_a_reused_result_says_so_in_its_label(stopped):
    assert labels(stopped)["recipes_1.quantize", 0] == "small · reused"
    assert labels(stopped)["recipes_1.accuracy", 0] == "small · NO_GO · reused"
    assert labels(stopped)["targets.staging", 1] == "cpu-b · GO"


def test_a_terminal_error_is_never_tried_again_and_no_recipe_is_tried_after_it(release, caplog):
    run = release({"download": {"error": "terminal"}}, fresh=True)
    seen = states(run)
    assert run.state == "failed"
    assert tries(run)["download"] == 1
    assert "the test asked for a terminal error -> nothing to do" in caplog.text
    assert (seen["recipes_1.quantize", 0], seen["recipes_2.quantize", 0]) == ("upstream_failed", "skipped")
    assert "large is skipped: download, baseline_gate did not succeed in this run" in caplog.text
    assert (seen["targets.choose", 0], seen["targets.build", 0]) == ("failed", "upstream_failed")
    assert seen["report", -1] == "success"
