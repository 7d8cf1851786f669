"""Who is told of what happens to releases."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from llm_pipeline.config.model import ConfigModel, Name, VariableName

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""How much an event matters: the least first."""


class Channel(ConfigModel):
    """A service that Apprise knows: Slack, Teams, e-mail, PagerDuty and a hundred more.

    Its URLs hold secrets: they stand in a variable, never here.

    Attributes:
        variable: Environment variable with one or more of Apprise's URLs, separated by blanks, wherever releases are
            run: Airflow's workers, or the shell of `llm-pipeline run`. `airflow_connections` may name a connection
            whose password is its value.
        at_least: Severity of the least event that is sent: `warning` where a person should look, `critical` where
            production is in danger or was changed back.
    """

    variable: VariableName
    at_least: Severity = "info"


Notifications = Annotated[dict[Name, Channel], Field(max_length=64)]
"""Every channel by a name for logs."""
