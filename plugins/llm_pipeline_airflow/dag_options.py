"""What all of our DAGs say: owner, retries, tags and when they run by the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from airflow.sdk import CronTriggerTimetable, ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowTimetableInvalid
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from llm_pipeline.base.errors import ConfigError
from llm_pipeline_airflow.notifications import callbacks

_RETRIES = 3
_FIRST_DELAY = timedelta(seconds=10)
_LONGEST_DELAY = timedelta(minutes=10)
_RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            exception=["llm_pipeline_airflow.faults.Refused", "llm_pipeline.base.errors.Terminal"],
            action=RetryAction.FAIL,
            reason="a terminal error: trying again cannot help",
        )
    ]
)
"""All other errors are tried again, with Airflow's exponential back-off."""


@cache
def _templates() -> Environment:
    folder = Path(__file__).parent / "templates"
    return Environment(loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True)  # noqa: S701


def documentation(kind: str, **values: Any) -> str:
    """The documentation of a DAG in Markdown, from the template of its kind."""
    return _templates().get_template(f"{kind}.md.jinja").render(**values)


def task_defaults(owner: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Arguments of all tasks of our DAGs: who owns them, when they are tried again, and who is told how they ended.

    Args:
        owner: Of the DAG.
        given: What somebody wants otherwise; their callbacks are called beside ours.
    """
    theirs, ours = dict(given or {}), callbacks()
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


_LONGEST_TAG = 100
"""Characters of a tag that Airflow's database holds."""


def dag_tags(
    kind: str, deployment: str, *, models: Iterable[str], targets: Iterable[str], engines: Iterable[str]
) -> list[str]:
    """The tags of one DAG, such as `llm-release`, `model:org/name`, `deployment:prod`, `target:h100`, `engine:vllm`.

    Args:
        kind: What the DAG does: `release`, `guard`, ...
        deployment: Name of its deployment.
        models: Ids of the models that it is about.
        targets: Names of targets or places.
        engines: The engines of those.
    """
    named = {"model": models, "deployment": [deployment], "target": targets, "engine": engines}
    tags = [f"llm-{kind}", *(f"{label}:{value}" for label, values in named.items() for value in values)]
    return list(dict.fromkeys(tag[:_LONGEST_TAG] for tag in tags))


def cron_timetable(cron: str | None, *, key: str, where: str) -> CronTriggerTimetable | None:
    """The timetable of a cron expression; None for none. Airflow itself would refuse it only with all DAGs of its file.

    Args:
        cron: Five fields, or one of Airflow's words for them.
        key: Where the expression stands in its file.
        where: That file.

    Raises:
        ConfigError: It is no cron expression.
    """
    if cron is None:
        return None
    timetable = CronTriggerTimetable(cron, timezone="UTC")
    try:
        timetable.validate()
    except AirflowTimetableInvalid as error:
        hint = "five fields: minute, hour, day of the month, month, day of the week"
        raise ConfigError(f"{key} {cron!r}: {error}", where=where, hint=hint) from error
    return timetable
