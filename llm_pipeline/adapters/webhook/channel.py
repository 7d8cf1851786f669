"""A Slack-compatible webhook: Slack, Mattermost, Rocket.Chat and others take the same JSON."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from http import HTTPStatus

from llm_pipeline.adapters.webhook.adapter import WebhookChannel
from llm_pipeline.base.bounded_http import call
from llm_pipeline.notifications.channel import Connection, ConnectionReader, NotSent, Refused
from llm_pipeline.notifications.message import Message

TIMEOUT_SECONDS = 10.0
_MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


@dataclass(frozen=True)
class Webhook:
    """Posts messages to a secret URL: no error, log or repr shows any part of it."""

    url: str = field(repr=False)

    def send(self, message: Message) -> None:
        """Post it; see `Channel`."""
        if not self.url.startswith(("https://", "http://")):
            raise Refused("the webhook's URL is not one of http or https", hint="correct the variable or connection")
        body = json.dumps(message.slack()).encode()
        headers = {"Content-Type": "application/json"}
        try:
            answer = call(
                self.url, seconds=TIMEOUT_SECONDS, method="POST", headers=headers, body=body, through_proxy=True
            )
        except (OSError, ValueError) as error:  # their texts may hold the URL
            raise NotSent(f"the webhook cannot be reached: {_kind(error)}") from None
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:  # a redirect is not followed
            raise _answered(answer.status)


def _answered(status: int) -> NotSent | Refused:
    told = f"the webhook answered {status}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _MAY_PASS:
        return NotSent(told)
    return Refused(told, hint="is its URL still right?")


def _kind(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return type(reason if isinstance(reason, Exception) else error).__name__


def open_channel(settings: WebhookChannel, connections: ConnectionReader) -> Webhook | None:
    """The channel; None where its URL or its server is not configured here."""
    if settings.variable:
        url = (os.environ.get(settings.variable) or "").strip()
    else:
        found = connections(settings.connection or "")
        url = _url_of(found) if found else ""
    return Webhook(url) if url else None


def _url_of(connection: Connection) -> str:
    """The password, which is the whole URL, or what comes after the host, as in Airflow's Slack connections."""
    secret = connection.password
    return secret if "://" in secret or not connection.host else f"{connection.host.rstrip('/')}/{secret}"
