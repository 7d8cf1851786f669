"""Who marked a release's run as failed: the API server notes it on the run, where people and our last tasks read it.

Of such a run Airflow skips what had not begun, lets teardowns run, and then calls it a success, for skipped tasks are
none that failed. So `give_back` fails; a run that never took its turn has no task that could, and is failed at once.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from llm_pipeline_airflow.links import DAG_PREFIX

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import Context

_NOTED = "Marked as failed by {by}, {at:%Y-%m-%d %H:%M:%S} UTC"
_MARKED = re.compile(r"^Marked as failed by (.+), (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC$", re.MULTILINE)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Note it, below whatever people noted."""
    if "manually" not in msg or not _is_release(dag_run):
        return
    from airflow.models.log import Log
    from airflow.utils.state import DagRunState
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session: Any = object_session(dag_run)
    asked = Log.dag_id == dag_run.dag_id, Log.run_id == dag_run.run_id, Log.event == "patch_dag_run"
    by = session.scalar(select(Log.owner).where(*asked).order_by(Log.id.desc()).limit(1)) or "a person"
    noted = _NOTED.format(by=by, at=datetime.now(UTC))
    if dag_run.dag_run_note is None:
        dag_run.note = (noted, None)
    else:
        dag_run.dag_run_note.content = f"{dag_run.note}\n\n{noted}"
    claim: Any = dag_run.get_task_instance("claim", session=session)
    if claim is None or claim.state == "skipped":
        dag_run.set_state(DagRunState.FAILED)


def who_ended(context: Context) -> str:
    """Who marked the run as failed since it began, or was cleared; empty if nobody did."""
    run = context["dag_run"]
    began = run.start_date.replace(microsecond=0) if run.start_date else datetime.min.replace(tzinfo=UTC)
    for by, at in reversed(_MARKED.findall(getattr(run, "note", None) or "")):
        if datetime.fromisoformat(at).replace(tzinfo=UTC) >= began:
            return str(by)
    return ""


def _is_release(dag_run: Any) -> bool:
    """Whether it is a run of a release's DAG, or of somebody's DAG with a release in it."""
    return any(str(name).startswith(DAG_PREFIX) for name in (dag_run.dag_id, *(dag_run.dag.tags or ())))
