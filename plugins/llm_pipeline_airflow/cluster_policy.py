"""Airflow's cluster policy: each mapped task instance of a release gets the name, queue and pool of its own target.

Airflow's scheduler and API server load this module by the entry point `airflow.policy`, and call its hook for every
task instance of every DAG that they create or clear. Only those with a table of `placement` are changed. Every Airflow
process loads it, and none starts when it cannot be imported, so it imports next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow import settings
from airflow.policies import hookimpl

from llm_pipeline_airflow.placement import LABEL, TABLE_KEY

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

# Airflow 3.3.2 keeps what a policy changes at the creation of a run only while this is false, and sets it so only for
# a module `airflow_local_settings`, which not every installation has.
settings.task_instance_mutation_hook.is_noop = False  # type: ignore[attr-defined]


@hookimpl
def task_instance_mutation_hook(task_instance: TaskInstance) -> None:
    """Put a task instance where its map index belongs; the label of an earlier try (`small · GO`) goes."""
    config = task_instance.executor_config
    table = config.get(TABLE_KEY) if isinstance(config, dict) else None
    if table is None:
        return
    found = dict(table[task_instance.map_index]) if 0 <= task_instance.map_index < len(table) else {}
    task_instance._rendered_map_index = found.pop(LABEL, None)  # noqa: SLF001 - Airflow 3.3 has no other way
    for name, value in found.items():
        setattr(task_instance, name, value)
