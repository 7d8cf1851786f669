"""The form of a release's DAG: what one run has otherwise than its config, from the form to the release's record."""

from __future__ import annotations

from datetime import timedelta

import pytest
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.faults import Refused
from test_impossible_release import without_hub  # noqa: F401 - a fixture

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.release.claim import read_claim
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store import open_store

RELEASE = "tiny-01234567-00000000"


def test_the_form_offers_what_the_config_has(project):
    params = release_dag(project.config).params
    assert (params["recipes"], params["targets"]) == (["small", "large"], ["cpu-a", "cpu-b"])
    assert (params["revision"], params["strategy"]) == (None, "climb")
    assert params.get_param("targets").schema["examples"] == ["cpu-a", "cpu-b"]


def test_a_ladder_that_is_drawn_side_by_side_is_not_offered_to_be_climbed(project):
    project.config.write_text(project.config.read_text() + "ladder: { strategy: every }\n")
    dag = release_dag(project.config)
    assert "strategy" not in dag.params
    with pytest.raises(Refused, match="tries all recipes at once"):
        dag.get_task("claim").poke({"params": {"strategy": "climb"}})


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"recipes": ["small", "tiny"]}, "tiny is not among the recipes.*a run may have some of small, large"),
        ({"targets": []}, "none is left of the targets.*a run may have some of cpu-a, cpu-b"),
        ({"targets": "cpu-a"}, "targets: Input should be a valid tuple"),
        ({"strategy": "jump"}, "strategy: Input should be 'climb' or 'every'"),
        ({"revision": "-x"}, "revision: String should match pattern"),
    ],
)
def test_a_wrong_value_is_refused_before_the_run_waits_for_its_turn(project, asked, told):
    claim = release_dag(project.config).get_task("claim")
    with pytest.raises(Refused, match=f"(?s){told}"):
        claim.poke({"params": asked})
    assert read_claim(open_store(f"file://{project.root}/store"), "demo/tiny").everyone == ()
    with pytest.raises(ConfigError, match=f"(?s){told}"):
        load_release(project.config, Overrides.of(asked))


@pytest.fixture
def run(project, airflow_database, in_process, monkeypatch):
    """Runs the release's DAG with such parameters; returns the DAG run's state, and each task's by id and index."""
    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
    monkeypatch.setattr("llm_pipeline_airflow.dag_options._FIRST_DELAY", timedelta(0))

    def run_with(**conf):
        ended = release_dag(project.config).test(run_conf=conf)
        return str(ended.state), {
            (ti.task_id, max(0, ti.map_index)): str(ti.state) for ti in ended.get_task_instances()
        }

    return run_with


def record_of(project):
    return ReleaseProgress.open(load_release(project.config).deployment, RELEASE).record


@pytest.mark.thorough
def test_a_run_of_one_recipe_and_one_target_is_promoted_there_and_touches_no_other(project, run):
    state, tasks = run(recipes=["large"], targets=["cpu-b"])
    assert state == "success"
    assert {tasks[f"recipes_1.{name}", 0] for name in ("quantize", "accuracy")} == {"skipped"}
    assert tasks["recipes_2.accuracy", 0] == "success"
    assert (tasks["targets.choose", 0], tasks["targets.choose", 1]) == ("skipped", "success")
    assert (tasks["promotion_1.settle", 0], tasks["promotion_2.settle", 0]) == ("skipped", "success")
    assert "failed" not in tasks.values()
    record = record_of(project)
    assert record.overrides == Overrides(recipes=("large",), targets=("cpu-b",))
    assert record.overrides_in_words == "recipes large; targets cpu-b, by dag_test"


@pytest.mark.slow
def test_a_dry_run_ends_well_and_starts_nothing(without_hub, run):  # noqa: F811
    state, tasks = run(dry_run=True)
    assert state == "success"
    assert set(tasks.values()) <= {"skipped", "None", "removed"}
