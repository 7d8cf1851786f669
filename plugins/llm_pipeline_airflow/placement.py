"""Which Airflow workers run a stage, and how many GPUs it takes there: queues, pools and slots out of a deployment.

A stage that runs once, or over recipes, has one queue and one pool: they are arguments of its operator. Those that run
over targets have them by map index, for which operators have no argument. Their tables travel in `executor_config`,
with the serialized DAG and into each task instance, where `cluster_policy` reads them: it needs no config file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every Airflow process loads this module
    from collections.abc import Sequence

    from llm_pipeline.config.deployment import Deployment, WorkerGroup
    from llm_pipeline.config.loading import LoadedRelease

TABLE_KEY = "llm_pipeline"

_OF_QUANTIZATION = frozenset({"baseline", "quantize", "accuracy"})
_ON_GPUS_OF_TARGETS = frozenset({"build", "staging", "served_accuracy", "load_test"})
_OF_TARGETS = _ON_GPUS_OF_TARGETS | {"choose", "package", "staging_down", "canary", "settle", "rollback"}
"""Those that are not on GPUs wait for no slot: a server must be stopped, and traffic given back, also when none is
free. Production's own servers hold their GPUs all the time, so a pool has slots for what is left of its host."""


def placement_arguments(stage: str, loaded: LoadedRelease, *, only: str = "") -> dict[str, Any]:
    """Operator arguments that say where a stage runs; none where the deployment leaves it to Airflow.

    Args:
        stage: Name of the stage.
        loaded: The release config.
        only: The target of a group that is mapped over it alone; empty for one that is mapped over all of them.
    """
    workers = loaded.deployment.workers
    if stage in _OF_QUANTIZATION:
        host = loaded.deployment.quantization_host
        return _arguments(workers.quantization, slots=host.count if host else 1)
    if stage not in _OF_TARGETS:
        return {}
    on_gpus = stage in _ON_GPUS_OF_TARGETS
    table = [
        _arguments(
            workers.targets.get(loaded.places[target.name]), slots=max(1, target.accelerator_count) if on_gpus else 0
        )
        for target in loaded.release.targets  # the groups are mapped in this order
        if only in ("", target.name)
    ]
    return {"executor_config": {TABLE_KEY: table}} if any(table) else {}


def placement_of_targets(deployment: Deployment, targets: Sequence[str]) -> dict[str, Any]:
    """Arguments of an operator that is mapped over targets and takes no slot: it runs where their servers are."""
    table = [_arguments(deployment.workers.targets.get(target), slots=0) for target in targets]
    return {"executor_config": {TABLE_KEY: table}} if any(table) else {}


def _arguments(group: WorkerGroup | None, *, slots: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if group and group.queue:
        arguments["queue"] = group.queue
    if group and group.pool and slots:
        arguments |= {"pool": group.pool, "pool_slots": slots}
    return arguments
