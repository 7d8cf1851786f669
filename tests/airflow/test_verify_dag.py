"""The nightly verification, and what every DAG says of itself: its owner and its tags."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.sdk import DAG
from llm_pipeline_airflow.deployment_dags import FoundWrong, VerifyOperator, deployment_dags
from llm_pipeline_airflow.discovery import all_dags
from llm_pipeline_airflow.notifications import ReleaseNotifier
from place_here import serve

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import Pointer

WORKERS = "workers: { targets: { cpu-b: { queue: on-b, pool: gpus-b } } }\n"


@pytest.fixture
def deployment(project) -> Path:
    return project.config.parents[1] / "deployments" / "here.yaml"


def made(project) -> DAG:
    (dag,) = deployment_dags("verify", (project.config.parent,)).values()
    return dag


def test_it_runs_every_night_unless_the_deployment_says_otherwise(project, deployment):
    dag = made(project)
    assert (dag.dag_id, dag.timetable.expression) == ("verify__here", "17 3 * * *")
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    text = deployment.read_text()
    deployment.write_text(text + "verification_schedule: '5 1 * * 0'\n")
    assert made(project).timetable.expression == "5 1 * * 0"
    deployment.write_text(text + "verification_schedule: null\n")
    assert made(project).schedule is None


def test_each_target_is_verified_on_the_host_of_its_servers_and_waits_behind_urgent_work(project, deployment):
    deployment.write_text(deployment.read_text() + WORKERS)
    (task,) = made(project).tasks
    assert task.expand_input.value == {"subject": ["cpu-a", "cpu-b"]}
    assert task.partial_kwargs["executor_config"] == {"llm_pipeline": [{}, {"queue": "on-b"}]}
    assert task.partial_kwargs["priority_weight"] == 1


def test_where_nothing_serves_there_is_nothing_wrong(deployment, told):
    told.messages.clear()
    VerifyOperator(task_id="verify", deployment_file=str(deployment), subject="cpu-a").execute({})
    assert told.messages == []


def test_a_finding_fails_the_task_with_one_message_and_is_told_once(deployment, told):
    told.messages.clear()
    store = open_store(load_yaml(deployment, Deployment).store)
    gone = ArtifactRef(kind="model_repository", digest="2" * 64)
    serves = Pointer(release_id="r2", repository=gone, slot="green", recipe="none", promoted_at=datetime.now(UTC))
    serve(store, "demo/tiny", "cpu-a", serves)
    operator = VerifyOperator(task_id="verify", deployment_file=str(deployment), subject="cpu-a")
    with pytest.raises(FoundWrong, match=r"production:demo/tiny/cpu-a: _COMPLETE\.json: missing") as caught:
        operator.execute({})
    assert "\n" not in str(caught.value)
    assert "error" not in str(caught.value).partition(":")[0]

    class Instance:
        task_id, dag_id, run_id, try_number, map_index, log_url = "verify", "verify__here", "run", 1, 0, ""

    ReleaseNotifier("failed").notify({"task": operator, "ti": Instance(), "exception": caught.value})
    (message,) = told.messages
    assert (message["title"], message["type"]) == ("Verification of cpu-a in here: something is wrong", "failure")
    assert "_COMPLETE.json" in message["message"]
    ReleaseNotifier("failed").notify({"task": operator, "ti": Instance(), "exception": ConfigError("no such place")})
    assert told.titles[1:] == ["verify cpu-a of here: failed"]  # what is no finding is told as ever


def test_every_dag_has_the_owner_of_its_deployment_and_tags_to_filter_by(project, deployment, monkeypatch):
    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
    deployment.write_text(deployment.read_text() + "owner: platform team\n")
    from airflow.serialization.serialized_objects import DagSerialization

    dags = all_dags(str(project.config))
    assert sorted(dags) == ["guard__here", "release__tiny", "retention__here", "rollback__here", "verify__here"]
    for dag_id, dag in dags.items():
        kind = dag_id.partition("__")[0]
        assert DagSerialization.to_dict(dag)["dag"]["dag_id"] == dag_id
        assert (dag.max_active_runs, dag.catchup) == (1, False), dag_id
        assert dag.owner == "platform team", dag_id
        assert dag.tags == {
            f"llm-{kind}", "model:demo/tiny", "deployment:here", "target:cpu-a", "target:cpu-b", "engine:openvino_cpu",
        }  # fmt: skip
