"""Queues and pools of task instances, as Airflow itself creates, clears and stores them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest
from airflow import settings
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.jobs.job import Job
from airflow.models.dagbag import DBDagBag
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance, clear_task_instances
from airflow.sdk import DAG
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from llm_pipeline_airflow import cluster_policy
from llm_pipeline_airflow.dag_factory import release_dag
from sqlalchemy import select

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.operations import doctor
from llm_pipeline.operations.doctor import examine, triggerer_problem
from llm_pipeline.release.loading import load_release

GPU_TARGET = """
accelerator: H100-SXM-80GB
accelerator_count: 2
parallelism: { tensor: 2 }
engine: tensorrt_llm_llmapi
"""
WORKERS = """
quantization_host: { accelerator: H200-SXM-141GB, count: 4 }
workers:
  quantization: { queue: on-h200, pool: gpus-h200 }
  targets: { cpu-a: { queue: on-a }, cpu-b: { queue: on-b, pool: gpus-b } }
"""
DEFAULT = ("default", "default_pool", 1)
ON_H200 = ("on-h200", "gpus-h200", 4)
ON_A = ("on-a", "default_pool", 1)
ON_B, ON_GPUS_OF_B = ("on-b", "default_pool", 1), ("on-b", "gpus-b", 2)
Placed = dict[tuple[str, int], tuple[str, str, int]]


@pytest.fixture
def workers(project):
    """The project with workers of its own for everything that can have them."""
    (project.root / "configs/targets/cpu-b.yaml").write_text(GPU_TARGET)
    project.add("deployments/here", WORKERS)
    return project


def stored(dag: DAG) -> DAG:
    """The DAG as the database gives it to scheduler and API server."""
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(bag, "dags-folder", None)
    with settings.Session() as session:
        return DBDagBag().get_latest_version_of_dag(dag.dag_id, session=session)


def created(dag: DAG) -> str:
    """The id of a new run."""
    now = datetime.now(UTC)
    run_id = f"run-{now.isoformat()}"
    with settings.Session() as session:
        stored(dag).create_dagrun(
            run_id=run_id,
            run_after=now,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state="running",
            session=session,
        )
        session.commit()
    return run_id


def instances(run_id: str):
    return select(TaskInstance).where(TaskInstance.run_id == run_id)


def placed(run_id: str) -> Placed:
    with settings.Session() as session:
        found = session.scalars(instances(run_id))
        return {(ti.task_id, ti.map_index): (ti.queue, ti.pool, ti.pool_slots) for ti in found}


def test_each_target_has_the_queue_and_the_gpus_of_its_own_host(workers, airflow_database):
    found = placed(created(release_dag(workers.config)))
    on_gpus = {f"targets.{name}" for name in ("build", "staging", "served_accuracy", "load_test")}
    of_targets = {key: place for key, place in found.items() if key[0].startswith(("targets.", "promotion_"))}
    assert len(of_targets) == 22
    for (task_id, index), place in of_targets.items():
        of_a = (index == 0 and task_id.startswith("targets.")) or task_id.startswith("promotion_1.")
        assert place == (ON_A if of_a else ON_GPUS_OF_B if task_id in on_gpus else ON_B), (task_id, index)


def test_what_runs_over_recipes_has_the_workers_of_quantization_and_the_rest_has_any(workers):
    tasks = release_dag(workers.config).task_dict.values()
    of_quantization = {task.task_id for task in tasks if (task.queue, task.pool, task.pool_slots) == ON_H200}
    recipes = {f"recipes_{number}.{stage}" for number in (1, 2) for stage in ("quantize", "accuracy")}
    assert of_quantization == {"baseline"} | recipes
    assert all((task.queue, task.pool) == DEFAULT[:2] for task in tasks if task.task_id not in of_quantization)


def test_a_cleared_task_keeps_its_place_and_its_label_is_the_item_again(workers, airflow_database):
    """`small · GO` of an earlier try would stay where Airflow itself ends the next one, as upstream_failed, say."""
    run_id = created(release_dag(workers.config))
    before, shown = placed(run_id), labels(run_id)
    assert (shown["recipes_1.accuracy", 0], shown["promotion_2.canary_5", 0]) == ("small", "cpu-b")
    assert [shown["targets.build", index] for index in (0, 1)] == ["cpu-a", "cpu-b"]
    assert shown["resolve", -1] is None
    with settings.Session() as session:
        for ti in session.scalars(instances(run_id)):
            ti.state, ti.queue, ti._rendered_map_index = "failed", "another", "an earlier try · GO"
        session.flush()
        clear_task_instances(list(session.scalars(instances(run_id))), session)
        session.commit()
    assert (placed(run_id), labels(run_id)) == (before, shown)


def labels(run_id: str) -> dict[tuple[str, int], str | None]:
    with settings.Session() as session:
        return {(ti.task_id, ti.map_index): ti._rendered_map_index for ti in session.scalars(instances(run_id))}


def test_a_deployment_that_names_no_workers_changes_nothing(project):
    for task in release_dag(project.config).task_dict.values():
        assert (task.queue, task.pool, task.pool_slots) == DEFAULT


def test_workers_of_a_target_without_a_place_are_refused(project):
    project.add("deployments/here", "workers: { targets: { cpu-c: { queue: on-c } } }")
    with pytest.raises(ConfigError, match=r"here\.yaml:\d+: workers: targets cpu-c have no place"):
        load_release(project.config)


def test_pools_and_a_triggerer_that_are_missing_or_too_small_are_named_before_a_task_waits_for_ever(
    workers, airflow_database
):
    workers.edit("deployments/here", "queue: on-a }", "pool: gpus-a }")
    in_containers = "environments: { gpus: { runner: docker, image: 'registry.test/llm/model:1' },"
    workers.edit("deployments/here", "environments: {", in_containers)
    Pool.create_or_update_pool("gpus-h200", 4, "", include_deferred=False)
    Pool.create_or_update_pool("gpus-b", 1, "", include_deferred=True)
    loaded = load_release(workers.config)
    found = {check.subject: check for check in examine(loaded.deployment, loaded.release.targets)}
    wrong = {
        name for name in ("triggerer", "pool gpus-a", "pool gpus-b", "pool gpus-h200") if found[name].state != "ok"
    }
    assert len(wrong) == 4
    assert found["pool gpus-a"].fix == 'airflow pools set gpus-a <GPUs> "<host>" --include-deferred'
    assert found["pool gpus-b"].detail == "1 slots, and one task takes 2: it would never start"
    assert "it does not count deferred tasks" in found["pool gpus-h200"].detail
    for name in ("gpus-a", "gpus-b", "gpus-h200"):
        Pool.create_or_update_pool(name, 4, "", include_deferred=True)
    ahead = datetime.now(UTC) + timedelta(hours=1)  # a starved machine takes longer than the life of a heartbeat
    with settings.Session() as session:
        session.add(Job(job_type="TriggererJob", state="running", latest_heartbeat=ahead))
        session.commit()
    assert {check.state for check in doctor._pools(loaded.deployment, loaded.release.targets)} == {"ok"}
    assert triggerer_problem() == ""


def test_airflow_itself_loads_the_policy():
    assert settings.get_policy_plugin_manager().is_registered(cluster_policy)
