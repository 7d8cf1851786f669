"""Who marked a release's run as failed: the API server notes it on the run, and by an XCom for our last tasks.

Of such a run Airflow skips what had not begun, lets teardowns run, and then calls it a success, for skipped tasks are
none that failed. So `give_back` fails; a run that never took its turn has no task that could, and is failed at once.

The XCom is one of `claim`, which every clear of the run starts anew: then it is gone.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from llm_pipeline_airflow.links import DAG_PREFIX

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import Context

_TASK, _KEY = "claim", "marked_failed_by"


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Note it, below whatever people noted, on a run of a release's DAG, or of somebody's DAG with a release in it."""
    named: Any = (dag_run.dag_id, *(dag_run.dag.tags or ())) if dag_run.dag is not None else (dag_run.dag_id,)
    if "manually" not in msg or not any(str(name).startswith(DAG_PREFIX) for name in named):
        return
    from airflow.models.log import Log
    from airflow.models.xcom import XComModel
    from airflow.utils.state import DagRunState
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session: Any = object_session(dag_run)
    run: dict[str, Any] = {"dag_id": dag_run.dag_id, "run_id": dag_run.run_id}
    asked = select(Log.owner).filter_by(event="patch_dag_run", **run).order_by(Log.id.desc()).limit(1)
    by = session.scalar(asked) or "a person"
    noted = f"Marked as failed by {by}, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if dag_run.dag_run_note is None:
        dag_run.note = (noted, None)
    else:
        dag_run.dag_run_note.content = f"{dag_run.note}\n\n{noted}"
    claim: Any = dag_run.get_task_instance(_TASK, session=session)
    if claim is None or claim.state == "skipped":
        dag_run.set_state(DagRunState.FAILED)
    else:
        XComModel.set(_KEY, by, task_id=_TASK, serialize=False, session=session, **run)


def who_ended(context: Context) -> str:
    """Who marked the run as failed since it took its turn; empty if nobody did."""
    return str(context["ti"].xcom_pull(task_ids=_TASK, key=_KEY) or "")
