"""Which Airflow workers run a stage, and how many GPUs it takes there: queues, pools and slots out of a deployment.

A stage that runs once, or over recipes, has one queue and one pool: they are arguments of its operator. Those that run
over targets have them by map index, for which operators have no argument. Their tables, with each item's name, travel
in `executor_config`, with the serialized DAG and into each task instance, where `cluster_policy` reads them: it needs
no config file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_pipeline.release.candidate import target_of
from llm_pipeline.release.step import Gpus, Machine

if TYPE_CHECKING:  # every Airflow process loads this module
    from collections.abc import Mapping, Sequence

    from llm_pipeline.config.deployment import Deployment, WorkerGroup
    from llm_pipeline.release.loading import LoadedRelease
    from llm_pipeline.release.tasks import Task

TABLE_KEY = "llm_pipeline"
LABEL = "label"


def placement_arguments(task: Task, loaded: LoadedRelease) -> dict[str, Any]:
    """Operator arguments that say what each task instance is called, and where it runs unless Airflow decides that.

    A step that takes no GPUs waits for no slot: a server must be stopped, and traffic given back, also when none is
    free. Production's own servers hold their GPUs all the time, so a pool has slots for what is left of its host.
    """
    step, workers = task.step, loaded.deployment.workers
    takes = step.gpus is Gpus.TAKEN
    own: dict[str, Any] = {}
    by_item: dict[str, dict[str, Any]] = {}
    if step.machine is Machine.QUANTIZATION_HOST:
        host = loaded.deployment.quantization_host
        own = _arguments(workers.quantization, slots=(host.count if host else 1) if takes else 0)
    elif step.machine is not Machine.ANYWHERE:
        for item in task.items:
            gpus = max(1, loaded.release.target(item).accelerator_count) if takes else 0
            by_item[item] = _arguments(workers.targets.get(loaded.places[target_of(item)]), slots=gpus)
    table = [{LABEL: item, **by_item.get(item, {})} for item in task.items if item]  # as the groups are mapped
    return {**own, "executor_config": {TABLE_KEY: table}}


def placement_of_targets(deployment: Deployment, targets: Sequence[str]) -> dict[str, Any]:
    """Arguments of an operator that is mapped over targets and takes no slot: it runs where their servers are."""
    table = [_arguments(deployment.workers.targets.get(target), slots=0) for target in targets]
    return {"executor_config": {TABLE_KEY: table}} if any(table) else {}


def queue_of(executor_config: Mapping[str, Any] | None, map_index: int | None) -> str:
    """The queue that the cluster policy gave a task instance, for the operator still has the task's; empty for none."""
    table = (executor_config or {}).get(TABLE_KEY, ())
    return str(table[map_index].get("queue", "")) if map_index is not None and 0 <= map_index < len(table) else ""


def _arguments(group: WorkerGroup | None, *, slots: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if group and group.queue:
        arguments["queue"] = group.queue
    if group and group.pool and slots:
        arguments |= {"pool": group.pool, "pool_slots": slots}
    return arguments
