"""Who is told of what happens to releases, and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, SerializeAsAny, StringConstraints, model_validator

from llm_pipeline.config.installed import OfKind, installed_model
from llm_pipeline.config.model import ConfigModel, ConnectionId, Name, VariableName

NotificationKind = Literal[
    "start", "step", "pause", "verdict", "rollback", "promotion",
    "approval", "failure", "retry", "deadline", "stage", "verification",
]  # fmt: skip
"""What an event is about."""

_FOR_PEOPLE = tuple(kind for kind in get_args(NotificationKind) if kind != "stage")

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


class Notifications(ConfigModel):
    """Messages about releases, by one webhook and by e-mail, and by further channels. Secrets never stand here.

    Attributes:
        webhook_variable: Environment variable with the URL of a Slack-compatible webhook, wherever releases are run:
            Airflow's workers, or the shell of `llm-pipeline run`.
        webhook_connection: Airflow connection with that URL as its password; only what Airflow runs can send by it.
        email_to: Who gets an e-mail; empty for none.
        email_connection: Airflow connection of the mail server, as Airflow's SMTP provider reads it; its extra field
            `from_email` is the sender. Only what Airflow runs can send by it.
        channels: Further channels, by names of yours.
        events: Which events are sent to people; by default all but `stage`, which each stage that ends well would send.
        release_hours: In Airflow, a release that is not over so many hours after its run was queued is told, once; None
            for never. It goes on.
    """

    webhook_variable: VariableName | None = None
    webhook_connection: ConnectionId | None = None
    email_to: Annotated[tuple[EmailAddress, ...], Field(max_length=256)] = ()
    email_connection: ConnectionId = "smtp_default"
    channels: Annotated[dict[Name, NotificationChannel], Field(max_length=64)] = Field(default={})
    events: tuple[NotificationKind, ...] = Field(default=_FOR_PEOPLE, min_length=1, max_length=16)
    release_hours: Annotated[float, Field(gt=0, le=24 * 30)] | None = None

    @model_validator(mode="after")
    def _one_webhook(self) -> Notifications:
        if self.webhook_variable and self.webhook_connection:
            raise ValueError("webhook_variable and webhook_connection name the same thing: give one of them")
        return self

    @model_validator(mode="after")
    def _names_are_free(self) -> Notifications:
        if taken := self._short().keys() & self.channels.keys():
            raise ValueError(f"channels: {', '.join(sorted(taken))} is the name of one that the fields above describe")
        return self

    @property
    def wanted(self) -> bool:
        """Whether anybody is to be notified."""
        return bool(self.by_name())

    @property
    def wants_stages(self) -> bool:
        """Whether the end of each stage is of interest to anybody."""
        return "stage" in self.events or any(channel.keeps_record for channel in self.by_name().values())

    def by_name(self) -> dict[str, NotificationChannel]:
        """Every channel. Its name is in what the store remembers of it."""
        return {**self._short(), **self.channels}

    def _short(self) -> dict[str, NotificationChannel]:
        """The channels that fields of their own describe."""
        found: dict[str, NotificationChannel] = {}
        if self.webhook_variable or self.webhook_connection:
            found["webhook"] = _channel(
                kind="webhook", variable=self.webhook_variable, connection=self.webhook_connection
            )
        if self.email_to:
            found["email"] = _channel(kind="email", to=self.email_to, connection=self.email_connection)
        return found


def _channel(*, kind: str, **settings: object) -> ChannelModel:
    found: ChannelModel = installed_model("notifications", kind)(kind=kind, **settings)
    return found
