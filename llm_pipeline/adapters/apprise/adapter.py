"""The settings of the channel `apprise`, and what opens it."""

from __future__ import annotations

from typing import Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.model import ConnectionId, VariableName
from llm_pipeline.config.notifications import SecretAddressChannel


class AppriseChannel(SecretAddressChannel):
    """Any service that Apprise knows. Its URLs hold secrets: they stand in a variable or a connection, never here.

    Attributes:
        variable: Environment variable with one or more of Apprise's URLs, separated by blanks, wherever releases are
            run: Airflow's workers, or the shell of `llm-pipeline run`.
        connection: Airflow connection with them as its password; only what Airflow runs can send by it.
    """

    kind: Literal["apprise"]
    variable: VariableName | None = None
    connection: ConnectionId | None = None


ADAPTER = Adapter(config=AppriseChannel, open=OnCall("llm_pipeline.adapters.apprise.channel:open_channel"))
