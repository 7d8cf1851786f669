"""Messages as e-mails, by any mail server that speaks SMTP."""

from __future__ import annotations

import smtplib
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from llm_pipeline.notifications.channel import MailServer, NotSent, Refused
from llm_pipeline.notifications.message import Message


@dataclass(frozen=True)
class Email:
    """Sends messages to people's addresses."""

    server: MailServer
    to: tuple[str, ...]
    name: str = "email"

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
