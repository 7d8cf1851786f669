"""The guard of each deployment that a release config names: `guard__<deployment>`, the canaries' dead-man switch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from llm_pipeline_airflow.command import TARGET_LABEL, CommandOperator
from llm_pipeline_airflow.deployments import UsedDeployment, deployment_dags
from llm_pipeline_airflow.placement import placement_of_targets
from llm_pipeline_airflow.retries import task_defaults

if TYPE_CHECKING:
    from airflow.sdk import Context

_PREFIX = "guard__"
FIRST_IN_LINE = {"priority_weight": 1000, "weight_rule": "absolute"}
"""A guard does not wait behind a queue of stages."""

_LONGEST_RUN = timedelta(minutes=15)
"""A host that is gone must not keep the guard from the others: one run at a time, and this one ends."""

_DOC = """### Guard of {name}

The watchdog. On each target it rolls back a canary whose controller is gone, that waited too long for a person, or that
a person denied. A canary with a live controller is left alone.

It also completes a rollback that was begun, starts a router or a production server that has ended, stops the previous
version when its rollback window ends, and sends notifications that are still due. It compares no clocks of two hosts: a
canary counts as silent from when the guard finds nothing new of it. If the store accepts no writes, it moves traffic to
stable anyway, fails, and records it later.

By hand: `llm-pipeline guard`. Its schedule is `guard:` in `{file}`; its time limits are in the policy's `canary`.
**Keep it unpaused**: without it, traffic stays on a canary whose worker has died until somebody looks.
"""


class GuardOperator(CommandOperator):
    """Guards one target."""

    def command(self, context: Context) -> Sequence[str]:  # noqa: ARG002 - the same every time
        return ("guard", "--target", self.subject)


def guard_dags(folders: tuple[Path, ...]) -> dict[str, DAG]:
    """The guard DAGs by DAG id."""
    return deployment_dags(_PREFIX, guard_dag, folders)


def guard_dag(used: UsedDeployment) -> DAG:
    """The DAG of one deployment."""
    name = used.deployment.name
    dag = DAG(
        dag_id=f"{_PREFIX}{name}",
        dag_display_name=f"Guard of {name}",
        description="Rolls back canaries whose controller is gone",
        doc_md=_DOC.format(name=name, file=used.path.name),
        schedule=used.deployment.guard.schedule,
        catchup=False,
        auto_register=False,  # a DAG file names its own: the check of all of them must add none
        max_active_runs=1,
        dagrun_timeout=_LONGEST_RUN,
        tags=["llm-guard"],
        default_args=task_defaults() | {"retries": 0},  # the next run is a minute away
    )
    with dag:
        GuardOperator.partial(
            task_id="guard",
            task_display_name="Guard",
            doc_md="The log has one line for each thing that it did, or `nothing to do`.",
            map_index_template=TARGET_LABEL,
            deployment_file=str(used.path),
            **FIRST_IN_LINE,
            **placement_of_targets(used.deployment, used.targets),
        ).expand(subject=list(used.targets))
    return dag
