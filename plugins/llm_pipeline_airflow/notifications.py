"""Notifications as Airflow sends them: it knows its connections, and the environment of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection as AirflowConnection
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from llm_pipeline.base.errors import places_of
from llm_pipeline.base.logging import Lines
from llm_pipeline.notifications.channel import Connection
from llm_pipeline_airflow.logs import get_logger

if TYPE_CHECKING:
    from llm_pipeline.config.deployment import Deployment

log = get_logger(__name__)


def tell(deployment: Deployment, target: str, release_id: str = "") -> None:
    """Tell people what was not told yet of a target's canary; nothing that goes wrong here reaches the caller.

    Args:
        deployment: Who is to be told.
        target: Name of the place.
        release_id: Whose canary; the one that the target had last by default.
    """
    try:
        _tell(deployment, target, release_id)
    except Exception as error:  # noqa: BLE001 - people who are not told must not fail a canary
        log.warning("%s", Lines(f"no notification is sent: {type(error).__name__}\n{places_of(error)}"))


def _tell(deployment: Deployment, target: str, release_id: str) -> None:
    from llm_pipeline.notifications.outbox import notify, notify_of_targets
    from llm_pipeline.store import open_store

    config = deployment.notifications
    if not config.wanted:
        return
    store = open_store(deployment.store)
    if release_id:
        notify(store, config, connection_of, release_id, target)
    else:
        notify_of_targets(store, deployment, connection_of, [target])


def connection_of(name: str) -> Connection | None:
    """What Airflow's connection of that name holds; None, and a line in the log, where it cannot be had."""
    try:
        found = AirflowConnection.get(name)
    except (AirflowException, AirflowRuntimeError, ValueError) as error:  # the last: its text is no connection
        log.warning("no notification is sent by the connection %s: %s", name, type(error).__name__)
        return None
    return Connection(
        host=found.host or "",
        port=found.port,
        login=found.login or "",
        password=found.password or "",
        extra=found.extra_dejson,
    )
