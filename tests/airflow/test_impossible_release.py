"""A DAG run whose release cannot work: its first task says so, and takes nobody's turn."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException
from llm_pipeline_airflow.claim import ClaimSensor
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.release.claim import read_claim
from llm_pipeline.store import open_store


def test_the_first_task_fails_with_the_plans_error_before_it_waits_for_a_turn(project):
    target = next((project.config.parents[1] / "targets").glob("cpu-a.yaml"))
    target.write_text(target.read_text().replace("openvino_cpu", "transformers_torch"))
    dag = release_dag(project.config)
    assert [task.task_id for task in dag.roots] == ["claim"]
    claim = dag.get_task("claim")
    assert isinstance(claim, ClaimSensor)
    with pytest.raises(AirflowFailException, match=r"target cpu-a: engine transformers_torch does not run on a CPU"):
        claim.poke({"task_reschedule_count": 0})
    assert read_claim(open_store(f"file://{project.root}/store"), "demo/tiny").everyone == ()
