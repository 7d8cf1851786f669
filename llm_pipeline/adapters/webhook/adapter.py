"""The settings of the channel `webhook`, and what opens it."""

from __future__ import annotations

from typing import Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.model import ConnectionId, VariableName
from llm_pipeline.config.notifications import SecretAddressChannel


class WebhookChannel(SecretAddressChannel):
    """A Slack-compatible webhook. Its URL is a secret: it stands in a variable or a connection, never here.

    Attributes:
        variable: Environment variable with the URL, wherever canaries are driven: Airflow's workers, or the shell of
            `llm-pipeline run`.
        connection: Airflow connection with the URL as its password; only what Airflow runs can send by it.
    """

    kind: Literal["webhook"]
    variable: VariableName | None = None
    connection: ConnectionId | None = None


ADAPTER = Adapter(config=WebhookChannel, open=OnCall("llm_pipeline.adapters.webhook.channel:open_channel"))
