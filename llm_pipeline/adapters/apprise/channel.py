"""Messages by Apprise, which speaks to the services itself; its own log is silenced, for it may show their URLs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_pipeline.adapters.apprise.adapter import AppriseChannel
from llm_pipeline.config.notifications import Severity
from llm_pipeline.notifications.channel import ConnectionReader, NotSent, Refused
from llm_pipeline.notifications.message import Message

_TYPES: Mapping[Severity, str] = {"info": "info", "warning": "warning", "critical": "failure"}


@dataclass(frozen=True)
class Services:
    """Sends messages to services: no error, log or repr shows any part of their URLs."""

    apprise: Any = field(repr=False)

    def send(self, message: Message) -> None:
        """Send it to all of them; see `Channel`."""
        body = message.text().partition("\n\n")[2]
        if not self.apprise.notify(title=message.title, body=body, notify_type=_TYPES[message.severity]):
            raise NotSent(
                "a service of Apprise did not take the message", hint="try its URL with the command `apprise`"
            )


@dataclass(frozen=True)
class _NoServices:
    """Stands in for services whose URLs are wrong: refuses every message."""

    def send(self, _message: Message) -> None:
        raise Refused("Apprise does not understand a URL", hint="try it with the command `apprise`")


def open_channel(settings: AppriseChannel, connections: ConnectionReader) -> Services | _NoServices | None:
    """The channel; None where its URLs are not configured here.

    Raises:
        ImportError: Apprise is not installed here.
    """
    if settings.variable:
        urls = os.environ.get(settings.variable) or ""
    else:
        found = connections(settings.connection or "")
        urls = found.password if found else ""
    if not urls.strip():
        return None
    import apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    services = apprise.Apprise()
    added = [services.add(url) for url in urls.split()]
    return Services(services) if all(added) else _NoServices()
