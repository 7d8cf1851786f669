"""Who is told of what happens to releases."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from llm_pipeline.config.model import ConfigModel, ConnectionId, Name, VariableName

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""How much an event matters: the least first."""


class Channel(ConfigModel):
    """A service that Apprise knows: Slack, Teams, e-mail, PagerDuty and a hundred more.

    Its URLs hold secrets: they stand in a variable or in a connection, never here.

    Attributes:
        variable: Environment variable with one or more of Apprise's URLs, separated by blanks, wherever releases are
            run: Airflow's workers, or the shell of `llm-pipeline run`.
        connection: Airflow connection with them as its password; only what Airflow runs can send by it.
        at_least: Severity of the least event that is sent: `warning` where a person should look, `critical` where
            production is in danger or was changed back.
    """

    variable: VariableName | None = None
    connection: ConnectionId | None = None
    at_least: Severity = "info"

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.variable is None) == (self.connection is None):
            raise ValueError("variable and connection name the same thing: give one of them")
        return self


Notifications = Annotated[dict[Name, Channel], Field(max_length=64)]
"""Every channel by a name for logs."""
