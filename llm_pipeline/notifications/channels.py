"""Where messages go: a webhook and a mail server, each with its secret, which is in no text of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from llm_pipeline.base.errors import Terminal, Transient
from llm_pipeline.config.notifications import Notifications
from llm_pipeline.notifications.message import Message


class NotSent(Transient):
    """A message could not be sent now."""


class Refused(Terminal):
    """A message will not be taken, however often it is sent."""


class Channel(Protocol):
    """Takes a message to people."""

    @property
    def name(self) -> str:
        """Its name in logs, and in what is remembered."""

    def send(self, message: Message) -> None:
        """Send it.

        Raises:
            NotSent: It may work later.
            Refused: It never will.
        """


@dataclass(frozen=True)
class MailServer:
    """A mail server and who we are to it.

    Attributes:
        security: How the connection is encrypted: at once, by STARTTLS, or not at all.
        timeout: In seconds.
    """

    host: str
    port: int
    sender: str
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    security: Literal["tls", "starttls", "none"] = "starttls"
    timeout: float = 10.0


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
    from llm_pipeline.notifications.email import Email
    from llm_pipeline.notifications.webhook import Webhook

    if secrets.webhook_url and (config.webhook_variable or config.webhook_connection):
        yield Webhook(secrets.webhook_url)
    if secrets.mail_server and config.email_to:
        yield Email(secrets.mail_server, config.email_to)
