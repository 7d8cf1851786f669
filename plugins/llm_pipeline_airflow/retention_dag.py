"""One retention DAG for each deployment that a release config names: `retention__<deployment>`.

A config that is broken is left out here, as in `discovery`; `dags/release_config_errors.py` is where it shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, Param

from llm_pipeline.base.logging import Lines
from llm_pipeline_airflow.connections import deployment_with_secrets
from llm_pipeline_airflow.deployments import UsedDeployment, deployment_dags
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.retries import task_defaults

if TYPE_CHECKING:
    from airflow.sdk import Context

log = get_logger(__name__)

_PREFIX = "retention__"

_DOC = """### Retention of {name}

Keeps what serves production, what served before, every running release, the newest **{rules.keep_releases}** releases
of each config and those of the last **{rules.keep_days:g} days**. The rest is marked, and removed by a run
**{rules.grace_hours:g} hours** later if it is still unused. Without *delete*, a run only says what it would remove.

By hand: `llm-pipeline gc`, `llm-pipeline gc --delete`. The rules are `retention:` in `{file}`.
"""


class RetentionOperator(BaseOperator):
    """Runs the retention of a deployment and logs its report; the parameter `delete` lets it remove things.

    Args:
        deployment_file: The deployment's file.
    """

    def __init__(self, *, deployment_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deployment_file = deployment_file

    def execute(self, context: Context) -> dict[str, int]:
        """Collect; returns the bytes that were, or would be, removed now and later."""
        from llm_pipeline.retention.collection import collect_garbage

        deployment = deployment_with_secrets(self.deployment_file)
        report = collect_garbage(deployment, delete=bool(context["params"]["delete"]))
        log.info("%s", Lines("\n".join(["", *report.lines()])))  # one record: the table's lines stay together
        return {"bytes_removed": report.bytes_removed, "bytes_condemned": report.bytes_condemned}


def retention_dags(folders: tuple[Path, ...]) -> dict[str, DAG]:
    """The retention DAGs by DAG id."""
    return deployment_dags(_PREFIX, retention_dag, folders)


def retention_dag(used: UsedDeployment) -> DAG:
    """The DAG of one deployment."""
    path, deployment = used.path, used.deployment
    rules = deployment.retention
    dag = DAG(
        dag_id=f"{_PREFIX}{deployment.name}",
        dag_display_name=f"Retention of {deployment.name}",
        description=f"Removes what nobody needs any more from {deployment.store.uri}",
        doc_md=_DOC.format(name=deployment.name, rules=rules, file=path.name),
        schedule=rules.schedule,
        catchup=False,
        auto_register=False,  # a DAG file names its own: the check of all of them must add none
        max_active_runs=1,
        tags=["llm-retention"],
        params={
            "delete": Param(
                rules.delete,
                type="boolean",
                title="Delete",
                description="Really remove what is of no use; otherwise only say what would go.",
            )
        },
        default_args=task_defaults(),
    )
    with dag:
        RetentionOperator(
            task_id="collect",
            task_display_name="Collect",
            doc_md="The table in the log says what is kept, what goes, why, and how much it is.",
            deployment_file=str(path),
        )
    return dag
