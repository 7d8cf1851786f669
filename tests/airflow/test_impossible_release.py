"""A DAG run whose release cannot work: its first task says so, and takes nobody's turn."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from llm_pipeline_airflow.claim import ClaimSensor
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.faults import Refused

from llm_pipeline.release.claim import read_claim
from llm_pipeline.store import open_store


def test_the_first_task_fails_with_the_plans_error_before_it_waits_for_a_turn(project):
    target = next((project.config.parents[1] / "targets").glob("cpu-a.yaml"))
    target.write_text(target.read_text().replace("openvino_cpu", "tensorrt_llm_llmapi"))
    dag = release_dag(project.config)
    assert [task.task_id for task in dag.roots] == ["claim"]
    claim = dag.get_task("claim")
    assert isinstance(claim, ClaimSensor)
    with pytest.raises(Refused, match=r"target cpu-a: engine tensorrt_llm_llmapi does not run on a CPU"):
        claim.poke({"task_reschedule_count": 0})
    assert read_claim(open_store(f"file://{project.root}/store"), "demo/tiny").everyone == ()


SIZES = """sizes: { model_type: llama, hidden_size: 128, intermediate_size: 384, num_hidden_layers: 2,
  num_attention_heads: 4, num_key_value_heads: 2, vocab_size: 512, max_position_embeddings: 4096 }"""


@pytest.fixture
def without_hub(project):
    """The sizes of the model are stated, and its hub refuses connections."""
    return without_hub_in(project)


def without_hub_in(project):
    project.config.write_text(project.config.read_text().replace("demo/tiny", f"demo/tiny, {SIZES}"))
    deployment = project.config.parents[1] / "deployments/here.yaml"
    deployment.write_text(deployment.read_text() + "hub: { endpoint: 'http://127.0.0.1:9' }\n")
    return project


def test_a_dry_run_shows_the_plan_and_takes_nobodys_turn(without_hub, caplog):
    dag = release_dag(without_hub.config)
    assert dag.params["dry_run"] is False
    with pytest.raises(AirflowSkipException, match="nothing was released"):
        dag.get_task("claim").poke({"task_reschedule_count": 0, "params": {"dry_run": True}})
    assert "the plan:" in caplog.text
    assert "cpu-b" in caplog.text
    assert read_claim(open_store(f"file://{without_hub.root}/store"), "demo/tiny").everyone == ()


def test_a_dry_run_of_a_release_that_cannot_work_fails(without_hub):
    target = next((without_hub.config.parents[1] / "targets").glob("cpu-a.yaml"))
    target.write_text(target.read_text().replace("openvino_cpu", "tensorrt_llm_llmapi"))
    with pytest.raises(Refused, match="does not run on a CPU"):
        release_dag(without_hub.config).get_task("claim").poke({"params": {"dry_run": True}})
