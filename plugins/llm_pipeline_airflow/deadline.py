"""A release that takes too long: Airflow's deadline of its DAG runs, which tells people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.callback import SyncCallback  # `airflow.sdk` has them, but its stubs do not
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.logs import get_logger

if TYPE_CHECKING:
    from llm_pipeline.release.loading import LoadedRelease

log = get_logger(__name__)


def deadline_of(loaded: LoadedRelease) -> DeadlineAlert | None:
    """The deadline of a release's DAG runs; None where the deployment wants none."""
    hours = loaded.deployment.notifications.release_hours
    if hours is None:
        return None
    callback = SyncCallback(tell_late, kwargs={"config_path": str(loaded.path)})
    interval = timedelta(hours=hours)
    return DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, interval, callback, name=f"Release within {hours:g} h")


def tell_late(config_path: str, context: dict[str, Any]) -> None:
    """Tell people that a DAG run missed its deadline; Airflow calls it, in a process of its executor.

    Args:
        config_path: The release config.
        context: Airflow's, with the DAG run as a dictionary.
    """
    from llm_pipeline.notifications.event import Event
    from llm_pipeline.store import open_store
    from llm_pipeline_airflow.notifications import page_of_run, tell
    from llm_pipeline_airflow.runs import release_of_run

    with contained("telling that a release is late") as faults:
        loaded, run = config_with_secrets(config_path), context["dag_run"]
        dag_id, run_id = str(run["dag_id"]), str(run["dag_run_id"])
        release_id = release_of_run(open_store(loaded.deployment.store), dag_id, run_id) or loaded.config.name
        hours = loaded.deployment.notifications.release_hours or 0.0
        event = Event(
            id=f"late/{dag_id}/{run_id}", at=datetime.now(UTC), kind="deadline", severity="warning",
            deployment=loaded.deployment.name, release_id=release_id, link=page_of_run(dag_id, run_id),
            title=f"Release {release_id}: not over after {hours:g} h",
            why="It is later than `release_hours` of the deployment's notifications; it goes on.",
            next_action="Look which of its tasks runs or waits; a hung stage ends at its time limit.",
        )  # fmt: skip
        tell(loaded.deployment, events=[event])
    for fault in faults:
        log.warning("nobody is told that a release is late: %s", fault)
