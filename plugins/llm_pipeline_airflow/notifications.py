"""What happens to a release, as Airflow tells it: it knows its connections, and the environment of its workers.

Every task of our DAGs has a `ReleaseNotifier` at each of Airflow's callbacks, and every question has one at its start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.configuration import conf

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.notifications.event import Event, Origin
from llm_pipeline_airflow.faults import get_logger
from llm_pipeline_airflow.links import REPORT_ROUTE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.config.deployment import Deployment

Happened = Literal["done", "failed", "retried", "asked"]

log = get_logger(__name__)


class ReleaseNotifier(BaseNotifier):
    """Tells what a task of our DAGs did, from its result or its error; it never fails the task.

    An operator with more to tell than its error has `events_of(origin, happened, context)`; what it returns is told,
    and None where its error, if any, is all.

    Args:
        happened: Which of Airflow's callbacks it stands at; `asked`: a question's start.
    """

    def __init__(self, happened: Happened) -> None:
        super().__init__()
        self.happened = happened

    def notify(self, context: Context) -> None:
        """Tell it; see `BaseNotifier`."""
        from llm_pipeline.notifications.telling import contained, keep_run, tell
        from llm_pipeline.store import open_store

        with contained("reading whom to notify"):
            deployment, name = _whose(context["task"])
            if deployment is not None:
                origin = _origin(deployment, name, context)
                tell(deployment, self._events(origin, context))
                if self.happened == "done" and getattr(context["task"], "stage", "") == "report":
                    keep_run(open_store(deployment.store), deployment, origin.release_id)

    def _events(self, origin: Origin, context: Context) -> tuple[Event, ...]:
        """What the task itself has to tell, or else its error."""
        from llm_pipeline.notifications.event import failed

        task, ti, error = context["task"], context["ti"], context.get("exception")
        events_of = getattr(task, "events_of", None)
        own = events_of(origin, self.happened, context) if events_of else None
        if own is not None or not isinstance(error, BaseException):
            return own or ()
        cause = error.__cause__ if isinstance(error.__cause__, PipelineError) else error
        stage, subject = getattr(task, "stage", "") or ti.task_id, str(getattr(task, "subject", ""))
        origin = replace(origin, link=ti.log_url if origin.link else "")
        return (failed(origin, stage, subject, cause, tried_again=self.happened == "retried"),)


def callbacks() -> dict[str, Any]:
    """Arguments of every task of our DAGs: whom Airflow calls when it ends."""
    return {
        "on_success_callback": ReleaseNotifier("done"),
        "on_failure_callback": ReleaseNotifier("failed"),
        "on_retry_callback": ReleaseNotifier("retried"),
    }


def page_of(context: Context, tab: str = f"/plugin/{REPORT_ROUTE}") -> str:
    """The page of a DAG run, with the release's report; empty where `[api] base_url` does not say where Airflow is."""
    ti, base = context.get("ti"), conf.get("api", "base_url", fallback="") or ""
    if ti is None or not base:
        return ""
    return f"{base.rstrip('/')}/dags/{quote(ti.dag_id, safe='')}/runs/{quote(ti.run_id, safe='')}{tab}"


def _whose(task: Any) -> tuple[Deployment | None, str]:
    """The deployment that a task works for, and the name of its release config."""
    from llm_pipeline_airflow.connections import config_with_secrets, deployment_with_secrets

    if path := getattr(task, "config_path", ""):
        loaded = config_with_secrets(path)
        return loaded.deployment, loaded.config.name
    path = getattr(task, "deployment_file", "")
    return (deployment_with_secrets(path) if path else None), ""


def _origin(deployment: Deployment, name: str, context: Context) -> Origin:
    release_id = str(getattr(context["task"], "release_id", "") or "")
    release_id = name if not release_id or "{{" in release_id else release_id  # the last: it was never rendered
    return Origin(deployment.name, release_id, page_of(context, f"/plugin/{REPORT_ROUTE}" if name else ""))
