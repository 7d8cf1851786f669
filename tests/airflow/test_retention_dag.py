from __future__ import annotations

import logging

import pytest
from airflow.sdk import DAG
from llm_pipeline_airflow.deployment_dags import deployment_dags

from llm_pipeline.store import open_store

RULES = "retention: { schedule: '30 3 * * *', delete: true, keep_releases: 3 }\n"


@pytest.fixture
def with_rules(project):
    deployment = project.config.parents[1] / "deployments" / "here.yaml"
    deployment.write_text(deployment.read_text() + RULES)
    return project


def made(project) -> DAG:
    (dag,) = deployment_dags("retention", (project.config.parent,)).values()
    return dag


def test_a_deployment_has_one_dag_however_many_releases_name_it(project):
    project.config.with_name("other.yaml").write_text(project.config.read_text())
    assert set(deployment_dags("retention", (project.config.parent,))) == {"retention__here"}


def test_the_deployment_says_when_it_runs_and_whether_it_deletes(with_rules):
    dag = made(with_rules)
    assert dag.timetable.expression == "30 3 * * *"
    assert dag.params["delete"] is True
    assert "newest **3**" in dag.doc_md


def test_without_rules_it_runs_by_hand_and_deletes_nothing(project):
    dag = made(project)
    assert dag.schedule is None
    assert dag.params["delete"] is False


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
