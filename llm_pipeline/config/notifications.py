"""Who is notified about a canary, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from llm_pipeline.config.model import ConfigModel, VariableName

NotificationKind = Literal["start", "step", "pause", "verdict", "rollback", "promotion"]
"""What a message is about."""

ConnectionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,250}$", max_length=250)]
EmailAddress = Annotated[str, StringConstraints(pattern=r"^[^@\s<>,;:\"]+@[^@\s<>,;:\"]+$", max_length=320)]


class Notifications(ConfigModel):
    """Messages about canaries. The webhook's URL is a secret: it stands in a variable or a connection, never here.

    Attributes:
        webhook_variable: Environment variable with the URL of a Slack-compatible webhook, wherever canaries are driven:
            Airflow's workers, or the shell of `llm-pipeline run`.
        webhook_connection: Airflow connection with that URL as its password; only what Airflow runs can send by it.
        email_to: Who gets an e-mail; empty for none.
        email_connection: Airflow connection of the mail server, as Airflow's SMTP provider reads it; its extra field
            `from_email` is the sender. Only what Airflow runs can send by it.
        events: Which events are sent; all by default.
    """

    webhook_variable: VariableName | None = None
    webhook_connection: ConnectionId | None = None
    email_to: Annotated[tuple[EmailAddress, ...], Field(max_length=256)] = ()
    email_connection: ConnectionId = "smtp_default"
    events: tuple[NotificationKind, ...] = Field(
        default=("start", "step", "pause", "verdict", "rollback", "promotion"), min_length=1, max_length=16
    )

    @model_validator(mode="after")
    def _one_webhook(self) -> Notifications:
        if self.webhook_variable and self.webhook_connection:
            raise ValueError("webhook_variable and webhook_connection name the same thing: give one of them")
        return self

    @property
    def wanted(self) -> bool:
        """Whether anybody is to be notified."""
        return bool(self.webhook_variable or self.webhook_connection or self.email_to)
