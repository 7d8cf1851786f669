"""Messages as e-mails, by any mail server that speaks SMTP."""

from __future__ import annotations

import smtplib
import ssl
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Literal

from llm_pipeline.adapters.email.adapter import EmailChannel
from llm_pipeline.base.logging import get_logger
from llm_pipeline.notifications.channel import Connection, ConnectionReader, NotSent, Refused
from llm_pipeline.notifications.message import Message

log = get_logger(__name__)

_SMTPS_PORT = 465


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
class Email:
    """Sends messages to people's addresses."""

    server: MailServer
    to: tuple[str, ...]

    def send(self, message: Message) -> None:
        """Send it to all of them at once; see `Channel`."""
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = message.title, self.server.sender, ", ".join(self.to)
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain="llm-pipeline")
        mail.set_content(message.text())
        try:
            with self._connect() as connection:
                connection.send_message(mail)
        except (smtplib.SMTPAuthenticationError, smtplib.SMTPNotSupportedError) as error:
            raise Refused(f"the mail server refuses the connection: {type(error).__name__}") from None
        except OSError as error:  # every other error of smtplib; their texts may hold what we sent
            raise NotSent(f"the mail server rejects the message: {type(error).__name__}") from None

    def _connect(self) -> smtplib.SMTP:
        server = self.server
        if server.security == "tls":
            context = ssl.create_default_context()
            connection: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, timeout=server.timeout, context=context
            )
        else:
            connection = smtplib.SMTP(server.host, server.port, timeout=server.timeout)
        try:
            if server.security == "starttls":
                connection.starttls(context=ssl.create_default_context())
            if server.login and server.password:
                connection.login(server.login, server.password)
        except OSError:
            connection.close()
            raise
        return connection


def open_channel(settings: EmailChannel, connections: ConnectionReader) -> Email | None:
    """The channel; None where its server is not configured here."""
    found = connections(settings.connection)
    server = _server_of(found) if found else None
    return Email(server, settings.to) if server else None


def _server_of(connection: Connection) -> MailServer | None:
    """The connection as Airflow's SMTP provider reads it."""
    extra = connection.extra
    sender = extra.get("from_email") or connection.login
    if not connection.host or not sender:
        log.warning("no notification is sent by e-mail: the connection names no host, or no sender (from_email)")
        return None
    plain = bool(extra.get("disable_tls", False))
    return MailServer(
        host=connection.host,
        port=connection.port or _SMTPS_PORT,
        sender=sender,
        login=connection.login or None,
        password=connection.password or None,
        security=("none" if plain else "starttls") if bool(extra.get("disable_ssl", False)) else "tls",
    )
