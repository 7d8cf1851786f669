"""Where messages go: a webhook and a mail server, each with its secret, which is in no text of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from llm_pipeline.config.notifications import Notifications
from llm_pipeline.notifications.channel import Channel, MailServer
from llm_pipeline.notifications.email import Email
from llm_pipeline.notifications.webhook import Webhook


@dataclass(frozen=True)
class Secrets:
    """What a configuration of notifications names and does not hold; None for what is not known here."""

    webhook_url: str | None = field(default=None, repr=False)
    mail_server: MailServer | None = None


def secrets_here(config: Notifications) -> Secrets:
    """What this process knows by itself: the environment."""
    variable = config.webhook_variable
    return Secrets(webhook_url=(os.environ.get(variable) or "").strip() or None if variable else None)


def channels(config: Notifications, secrets: Secrets) -> Iterator[Channel]:
    """The channels whose secrets are known; the others are served by whoever knows theirs."""
    if secrets.webhook_url and (config.webhook_variable or config.webhook_connection):
        yield Webhook(secrets.webhook_url)
    if secrets.mail_server and config.email_to:
        yield Email(secrets.mail_server, config.email_to)
