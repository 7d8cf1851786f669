"""The rollback of each deployment that a release config names: `rollback__<deployment>`, a form for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowSkipException

from llm_pipeline_airflow.command import TARGET_LABEL, CommandOperator
from llm_pipeline_airflow.deployments import UsedDeployment, deployment_dags
from llm_pipeline_airflow.guard_dag import FIRST_IN_LINE
from llm_pipeline_airflow.placement import placement_of_targets
from llm_pipeline_airflow.retries import task_defaults

if TYPE_CHECKING:
    from airflow.sdk import Context

_PREFIX = "rollback__"
_RELEASE = r"^([a-z0-9][a-z0-9_.-]{0,127})?$"

_DOC = """### Rollback of {name}

Trigger it when a release does harm.

- A release that is **on trial** gives all its traffic back to the version that serves; its canary ends.
- A release that **serves** is replaced by the one before it. Within the rollback window that one's server is warm, and
  this takes seconds.

It needs no metrics and no approval. Triggering it twice is safe, and a release that was rolled back does not return by
itself. If a canary has just ended in a rollback, name the release in production to leave it. The last line of the log
says what serves.

By hand: `llm-pipeline rollback MODEL TARGET [--from RELEASE]`.
"""


class RollBackOperator(CommandOperator):
    """Leaves a release on the target that the form names; other targets are skipped."""

    def command(self, context: Context) -> Sequence[str]:
        form = context["params"]
        if form["target"] != self.subject:
            raise AirflowSkipException(f"{self.subject} was not asked for")
        command = ["rollback", form["model"], self.subject, f"--reason={form['reason']}", f"--by={_asker(context)}"]
        return [*command, f"--from={form['release']}"] if form["release"] else command


def rollback_dags(folders: tuple[Path, ...]) -> dict[str, DAG]:
    """The rollback DAGs by DAG id."""
    return deployment_dags(_PREFIX, rollback_dag, folders)


def rollback_dag(used: UsedDeployment) -> DAG:
    """The DAG of one deployment."""
    name = used.deployment.name
    dag = DAG(
        dag_id=f"{_PREFIX}{name}",
        dag_display_name=f"Rollback of {name}",
        description="Rolls back a release on trial or in production, at a person's request",
        doc_md=_DOC.format(name=name),
        schedule=None,
        catchup=False,
        auto_register=False,  # a DAG file names its own: the check of all of them must add none
        max_active_runs=1,
        tags=["llm-rollback"],
        params=_form(used),
        default_args=task_defaults(),
    )
    with dag:
        RollBackOperator.partial(
            task_id="roll_back",
            task_display_name="Roll back",
            doc_md="The last line of the log says what serves.",
            map_index_template=TARGET_LABEL,
            deployment_file=str(used.path),
            **FIRST_IN_LINE,
            **placement_of_targets(used.deployment, used.targets),
        ).expand(subject=list(used.targets))
    return dag


def _form(used: UsedDeployment) -> dict[str, Param]:
    return {
        "model": _choice(used.models, title="Model"),
        "target": _choice(used.targets, title="Target"),
        "release": Param(
            None,
            type=["null", "string"],
            pattern=_RELEASE,
            title="Release to leave",
            description="Its id, or the beginning of it. Empty: what is on trial, or else what serves, unless it "
            "serves because another release was taken back.",
        ),
        "reason": Param(
            type="string", minLength=3, maxLength=200, title="Reason", description="Kept with what was done."
        ),
    }


def _choice(names: tuple[str, ...], *, title: str) -> Param:
    """One of these names; the only one is chosen already."""
    if len(names) == 1:
        return Param(names[0], type="string", enum=list(names), title=title)
    return Param(type="string", enum=list(names), title=title)


def _asker(context: Context) -> str:
    run: Any = context["dag_run"]
    return str(getattr(run, "triggering_user_name", None) or f"run {run.run_id}")
