"""Who is told of what happens to releases, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, SerializeAsAny, StringConstraints, model_validator

from llm_pipeline.config.installed import OfKind
from llm_pipeline.config.model import ConfigModel, ConnectionId, Name, VariableName

NotificationKind = Literal[
    "start", "step", "pause", "verdict", "rollback", "promotion",
    "approval", "failure", "retry", "deadline", "stage", "verification",
]  # fmt: skip
"""What an event is about."""

EVERY_KIND: frozenset[NotificationKind] = frozenset(get_args(NotificationKind))
FOR_PEOPLE = EVERY_KIND - {"stage"}
"""All but what each stage that ends well would send."""

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""How much an event matters: the least first."""

EmailAddress = Annotated[str, StringConstraints(pattern=r"^[^@\s<>,;:\"]+@[^@\s<>,;:\"]+$", max_length=320)]


class ChannelModel(ConfigModel):
    """What every kind of channel is; each names its `kind`.

    Attributes:
        at_least: Severity of the least event that is sent: `warning` where a person should look, `critical` where
            production is in danger or was changed back.
    """

    keeps_record: ClassVar[bool] = False
    """Whether it keeps a record of releases and is sent all kinds of events: no person reads it."""

    if TYPE_CHECKING:
        kind: str
    at_least: Severity = "info"

    def problems(self) -> Iterator[str]:
        """Why it can send nothing, as far as its settings tell; `plan` refuses the deployment."""
        yield from ()

    def warnings(self) -> Iterator[str]:
        """What `plan` says of it besides."""
        yield from ()


class SecretAddressChannel(ChannelModel):
    """A channel whose address is a secret: it stands in a variable or in a connection, never in the deployment."""

    if TYPE_CHECKING:
        variable: VariableName | None
        connection: ConnectionId | None

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.variable is None) == (self.connection is None):
            raise ValueError("variable and connection name the same thing: give one of them")
        return self


NotificationChannel = Annotated[ChannelModel, OfKind("notifications"), SerializeAsAny()]
"""Settings of an adapter: one of ours, or one that an installed package brings."""


Notifications = Annotated[dict[Name, NotificationChannel], Field(max_length=64)]
"""Every channel by its name, which is in what the store remembers of it."""


def wants_stages(notifications: Mapping[str, ChannelModel]) -> bool:
    """Whether the end of each stage is of interest to any channel."""
    return any(channel.keeps_record for channel in notifications.values())
