"""A release that takes too long is told by Airflow's deadline of its runs."""

from __future__ import annotations

from datetime import timedelta

from airflow.serialization.serialized_objects import DagSerialization
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.deadline import tell_late
from llm_pipeline_airflow.runs import remember_run

from llm_pipeline.notifications.stream import read
from llm_pipeline.store import open_store


def test_without_hours_in_the_deployment_a_run_has_no_deadline(project) -> None:
    assert not release_dag(project.config).deadline


def test_a_late_run_is_told_once_by_the_callback_of_its_deadline(project) -> None:
    deployment = project.config.parents[1] / "deployments/here.yaml"
    deployment.write_text(deployment.read_text() + "notifications: { release_hours: 2 }\n")
    dag = release_dag(project.config)
    (deadline,) = dag.deadline
    assert deadline.interval == timedelta(hours=2)
    assert deadline.callback.path == "llm_pipeline_airflow.deadline.tell_late"
    assert DagSerialization.to_dict(dag)["dag"]["deadline"]

    store = open_store(f"file://{project.root}/store")
    remember_run(store, dag.dag_id, "manual", "tiny-1")
    for _ in range(2):
        tell_late(context={"dag_run": {"dag_id": dag.dag_id, "dag_run_id": "manual"}}, **deadline.callback.kwargs)
    (told,) = read(store)
    assert (told.kind, told.severity, told.release_id) == ("deadline", "warning", "tiny-1")
    assert told.title == "Release tiny-1: not over after 2 h"


def test_what_goes_wrong_there_is_only_logged(project, caplog) -> None:
    tell_late(config_path="/nowhere.yaml", context={"dag_run": {}})
    assert "nobody is told that a release is late" in caplog.text
