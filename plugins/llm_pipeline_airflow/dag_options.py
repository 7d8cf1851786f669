"""What all of our DAGs say: documentation, tags and when they run by the clock."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from airflow.sdk import CronTriggerTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from llm_pipeline.base.errors import ConfigError


@cache
def _templates() -> Environment:
    folder = Path(__file__).parent / "templates"
    return Environment(loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True)  # noqa: S701


def documentation(kind: str, **values: Any) -> str:
    """The documentation of a DAG in Markdown, from the template of its kind."""
    return _templates().get_template(f"{kind}.md.jinja").render(**values)


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
