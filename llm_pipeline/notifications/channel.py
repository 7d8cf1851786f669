"""The port of a notification channel, and its errors: those to try again, and those not to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from llm_pipeline.base.errors import Terminal, Transient
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
