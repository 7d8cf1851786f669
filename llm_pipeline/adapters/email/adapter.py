"""The settings of the channel `email`, and what opens it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.model import ConnectionId
from llm_pipeline.config.notifications import ChannelModel, EmailAddress


class EmailChannel(ChannelModel):
    """E-mails.

    Attributes:
        to: Who gets them.
        connection: Airflow connection of the mail server, as Airflow's SMTP provider reads it; its extra field
            `from_email` is the sender. Only what Airflow runs can send by it.
    """

    kind: Literal["email"]
    to: Annotated[tuple[EmailAddress, ...], Field(min_length=1, max_length=256)]
    connection: ConnectionId = "smtp_default"


ADAPTER = Adapter(config=EmailChannel, open=OnCall("llm_pipeline.adapters.email.channel:open_channel"))
