"""When a DAG runs by the clock: a cron expression of a configuration file, in UTC whatever Airflow's own zone is."""

from __future__ import annotations

from airflow.sdk import CronTriggerTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid

from llm_pipeline.base.errors import ConfigError


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
