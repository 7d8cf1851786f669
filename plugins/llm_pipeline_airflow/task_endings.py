"""How a task of our DAGs ends: what fails it for good, what is tried again, and who is told of it.

Every task has a `ReleaseNotifier` at each of Airflow's callbacks, and every question has one at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.bases.notifier import BaseNotifier

from llm_pipeline.base.errors import ExitCode, PipelineError
from llm_pipeline.base.logging import Lines
from llm_pipeline.notifications.telling import Event, Origin, contained, failed, keep_run, tell
from llm_pipeline.store import open_store
from llm_pipeline_airflow.connections import config_with_secrets, deployment_with_secrets
from llm_pipeline_airflow.faults import get_logger
from llm_pipeline_airflow.links import page_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.config.deployment import Deployment

Happened = Literal["done", "failed", "retried", "asked"]

log = get_logger(__name__)


class Refused(SystemExit):
    """Fails a task for good: a verdict, a person's answer or bad input, of which Airflow's traceback would say nothing.

    Of every exception but this kind Airflow logs a traceback. The retry policy of our tasks never tries again after it.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.code = int(ExitCode.NO_GO)  # which Airflow logs


def refused(context: Context, why: str, *, told: bool = False) -> Refused:
    """What to raise; before, the reason is logged, unless the stage's log told it, and the task gets its label."""
    if not told:
        log.error("%s", Lines(why))
    ti: Any = context.get("ti")
    if label := getattr(getattr(ti, "task", None), "label", ""):  # Airflow renders it for other exceptions only
        ti.rendered_map_index = label
    return Refused(why)


_RETRIES = 3
_FIRST_DELAY = timedelta(seconds=10)
_LONGEST_DELAY = timedelta(minutes=10)
_RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            exception=["llm_pipeline_airflow.task_endings.Refused", "llm_pipeline.base.errors.Terminal"],
            action=RetryAction.FAIL,
            reason="a terminal error: trying again cannot help",
        )
    ]
)
"""All other errors are tried again, with Airflow's exponential back-off."""


def task_defaults(owner: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Arguments of all tasks of our DAGs: who owns them, when they are tried again, and who is told how they ended.

    Args:
        owner: Of the DAG.
        given: What somebody wants otherwise; their callbacks are called beside ours.
    """
    theirs = dict(given or {})
    ours = {
        "on_success_callback": ReleaseNotifier("done"),
        "on_failure_callback": ReleaseNotifier("failed"),
        "on_retry_callback": ReleaseNotifier("retried"),
    }
    for name in ours.keys() & theirs.keys():
        own = theirs[name]
        theirs[name] = [ours[name], *(own if isinstance(own, list | tuple) else [own])]
    return {
        "owner": owner,
        "retries": _RETRIES,
        "retry_delay": _FIRST_DELAY,
        "retry_exponential_backoff": True,
        "max_retry_delay": _LONGEST_DELAY,
        "retry_policy": _RETRY_POLICY,
        **ours,
        **theirs,
    }


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
        with contained("reading whom to notify"):
            deployment, name = _whose(context["task"])
            if deployment is not None:
                origin = _origin(deployment, name, context)
                tell(deployment, self._events(origin, context))
                if self.happened == "done" and getattr(context["task"], "stage", "") == "report":
                    keep_run(open_store(deployment.store), deployment, origin.release_id)

    def _events(self, origin: Origin, context: Context) -> tuple[Event, ...]:
        """What the task itself has to tell, or else its error."""
        task, ti, error = context["task"], context["ti"], context.get("exception")
        events_of = getattr(task, "events_of", None)
        own = events_of(origin, self.happened, context) if events_of else None
        if own is not None or not isinstance(error, BaseException):
            return own or ()
        cause = error.__cause__ if isinstance(error.__cause__, PipelineError) else error
        stage, subject = getattr(task, "stage", "") or ti.task_id, str(getattr(task, "subject", ""))
        origin = replace(origin, link=ti.log_url if origin.link else "")
        return (failed(origin, stage, subject, cause, tried_again=self.happened == "retried"),)


def _whose(task: Any) -> tuple[Deployment | None, str]:
    """The deployment that a task works for, and the name of its release config."""
    if path := getattr(task, "config_path", ""):
        loaded = config_with_secrets(path)
        return loaded.deployment, loaded.config.name
    path = getattr(task, "deployment_file", "")
    return (deployment_with_secrets(path) if path else None), ""


def _origin(deployment: Deployment, name: str, context: Context) -> Origin:
    release_id = str(getattr(context["task"], "release_id", "") or "")
    release_id = name if not release_id or "{{" in release_id else release_id  # the last: it was never rendered
    return Origin(deployment.name, release_id, page_of(context, with_report=bool(name)))
