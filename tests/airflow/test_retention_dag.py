from __future__ import annotations

import logging

import pytest
from airflow.sdk import DAG
from llm_pipeline_airflow.deployment_dags import retention_dags

from llm_pipeline.store import open_store

RULES = "retention: { schedule: '30 3 * * *', delete: true, keep_releases: 3 }\n"


@pytest.fixture
def with_rules(project):
    deployment = project.config.parents[1] / "deployments" / "here.yaml"
    deployment.write_text(deployment.read_text() + RULES)
    return project


def made(project) -> DAG:
    (dag,) = retention_dags((project.config.parent,)).values()
    return dag


def test_a_deployment_has_one_dag_however_many_releases_name_it(project):
    project.config.with_name("other.yaml").write_text(project.config.read_text())
    assert set(retention_dags((project.config.parent,))) == {"retention__here"}


def test_the_deployment_says_when_it_runs_and_whether_it_deletes(with_rules):
    dag = made(with_rules)
    assert dag.timetable.expression == "30 3 * * *"
    assert dag.params["delete"] is True
    assert "newest **3**" in dag.doc_md


def test_without_rules_it_runs_by_hand_and_deletes_nothing(project):
    dag = made(project)
    assert dag.schedule is None
    assert dag.params["delete"] is False


def test_it_runs_once_at_a_time_and_is_never_caught_up(project):
    assert made(project).max_active_runs == 1
    assert made(project).catchup is False


def test_a_broken_release_config_leaves_the_deployments_of_the_others_alone(project):
    project.config.with_name("broken.yaml").write_text("model: { id: demo/tiny }\nrecipe: [small]\n")
    assert set(retention_dags((project.config.parent,))) == {"retention__here"}


def test_a_worker_makes_only_the_dag_it_runs(project, monkeypatch):
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "release__tiny")
    assert retention_dags((project.config.parent,)) == {}


@pytest.mark.parametrize("delete", [False, True])
def test_the_report_is_a_table_in_the_log(with_rules, caplog, delete):
    store = open_store(f"file://{with_rules.root}/store")
    store.write_document("releases/tiny-00000001-00000001/results/left.json", {}, None)
    with caplog.at_level(logging.INFO):
        returned = made(with_rules).get_task("collect").execute({"params": {"delete": delete}})
    assert returned == {"bytes_removed": 0}
    assert "release  tiny-00000001-00000001        its removal was interrupted" in caplog.text
    assert bool(store.list_documents("releases")) is not delete
    assert ("nothing was changed" in caplog.text) is not delete


def test_the_dag_can_be_serialized(with_rules):
    from airflow.serialization.serialized_objects import DagSerialization

    assert DagSerialization.to_dict(made(with_rules))["dag"]["dag_id"] == "retention__here"
