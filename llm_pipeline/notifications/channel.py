"""The port of a notification channel, its errors, and the channels that a deployment names.

for name, channel in channels(deployment.notifications):
channel.send(message)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.errors import Terminal, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.notifications import ChannelModel
from llm_pipeline.notifications.event import Event
from llm_pipeline.notifications.message import Message
from llm_pipeline.store.artifact_store import ArtifactStore

log = get_logger(__name__)


class NotSent(Transient):
    """A message could not be sent now."""


class Refused(Terminal):
    """A message will not be taken, however often it is sent."""


class Channel(Protocol):
    """Takes a message to people. No error, log or repr of it shows a secret."""

    def send(self, message: Message) -> None:
        """Send it.

        Raises:
            NotSent: It may work later.
            Refused: It never will.
        """


@runtime_checkable
class Recorder(Protocol):
    """A channel that keeps a record of releases for programs: it reads in the store what an event does not say.

    Its settings say `keeps_record`. It may be given an event twice, and then records it once.
    """

    def record(self, event: Event, store: ArtifactStore) -> None:
        """Take it.

        Raises:
            NotSent: It may work later.
            Refused: It never will.
        """


@dataclass(frozen=True)
class Connection:
    """What an Airflow connection holds; each field may be empty."""

    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


ConnectionReader = Callable[[str], Connection | None]
"""From the name of an Airflow connection to what it holds; None where it cannot be had."""


def no_connections(_: str) -> None:
    """The `ConnectionReader` of a process that Airflow did not start."""


def channels(
    config: Mapping[str, ChannelModel], connections: ConnectionReader = no_connections
) -> Iterator[tuple[str, Channel | Recorder]]:
    """The channels whose secrets can be had here, with their names; others are left to whoever has theirs.

    One that cannot be opened is logged, and `doctor` says why.

    An entry point `llm_pipeline.notifications` names an `Adapter` whose `open` takes the channel's settings and the
    `ConnectionReader`, and returns the channel, or None where its secret cannot be had here.
    """
    for name, settings in config.items():
        channel: Channel | Recorder | None = None
        try:
            channel = adapter("notifications", settings.kind).open(settings, connections)
        except Exception as error:  # noqa: BLE001 - the others tell nevertheless; its text may hold where people are
            log.warning("a channel cannot be opened", channel=name, reason=type(error).__name__)
        if channel is not None:
            yield name, channel
