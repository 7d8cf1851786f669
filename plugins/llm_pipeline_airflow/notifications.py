"""Notifications as Airflow sends them: it knows its connections, and the environment of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from llm_pipeline.base.errors import places_of
from llm_pipeline.base.logging import Lines
from llm_pipeline.notifications.channel import MailServer
from llm_pipeline.notifications.channels import Secrets, secrets_here
from llm_pipeline_airflow.logs import get_logger

if TYPE_CHECKING:
    from llm_pipeline.config.deployment import Deployment
    from llm_pipeline.config.notifications import Notifications

log = get_logger(__name__)

_SMTPS_PORT = 465


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
    secrets, store = secrets_of(config), open_store(deployment.store)
    if release_id:
        notify(store, config, secrets, release_id, target)
    else:
        notify_of_targets(store, deployment, secrets, [target])


def secrets_of(config: Notifications) -> Secrets:
    """What the configuration names, by Airflow's connections and the environment; what cannot be had is left out."""
    url = secrets_here(config).webhook_url
    if config.webhook_connection and (connection := _connection(config.webhook_connection)):
        url = _webhook_url(connection)
    mail = _connection(config.email_connection) if config.email_to else None
    return Secrets(webhook_url=url, mail_server=_mail_server(mail) if mail else None)


def _connection(name: str) -> Connection | None:
    try:
        connection: Connection = Connection.get(name)
    except (AirflowException, AirflowRuntimeError, ValueError) as error:  # the last: its text is no connection
        log.warning("no notification is sent by the connection %s: %s", name, type(error).__name__)
        return None
    return connection


def _webhook_url(connection: Connection) -> str | None:
    """The password, which is the whole URL, or what comes after the host, as in Airflow's Slack connections."""
    secret = connection.password or ""
    return secret if "://" in secret or not connection.host else f"{connection.host.rstrip('/')}/{secret}"


def _mail_server(connection: Connection) -> MailServer | None:
    """The connection as Airflow's SMTP provider reads it."""
    extra = connection.extra_dejson
    sender = extra.get("from_email") or connection.login
    if not connection.host or not sender:
        log.warning("no notification is sent by e-mail: the connection names no host, or no sender (from_email)")
        return None
    plain = bool(extra.get("disable_tls", False))
    return MailServer(
        host=connection.host,
        port=connection.port or _SMTPS_PORT,
        sender=sender,
        login=connection.login,
        password=connection.password,
        security=("none" if plain else "starttls") if bool(extra.get("disable_ssl", False)) else "tls",
    )
