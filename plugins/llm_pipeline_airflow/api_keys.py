"""API keys of servers from Airflow's connections, for the processes that Airflow starts."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from llm_pipeline.runners.stage_environment import key_connections
from llm_pipeline_airflow.logs import get_logger

log = get_logger(__name__)


def fetch_api_keys(document: Any) -> None:
    """Put the keys that a configuration takes from connections into this task's environment, under their variables.

    Whoever starts a process hands on what that process needs of it. A variable that is set for the workers stays. A key
    that cannot be had is missed by who needs it, and the log says why.

    Args:
        document: A request's configuration, or a whole deployment's, as JSON.
    """
    for variable, name in key_connections(document).items():
        if os.environ.get(variable):
            continue
        if key := _password(name):
            os.environ[variable] = key


def _password(name: str) -> str:
    """Of a connection; empty, and a line in the log, where there is none. Airflow masks it in logs from here on."""
    try:
        password = Connection.get(name).password or ""
    except (AirflowException, AirflowRuntimeError, ValueError) as error:  # the last: its text is no connection
        log.warning("the connection %s with an API key cannot be had: %s", name, type(error).__name__)
        return ""
    if not password:
        log.warning("the connection %s has no password, which should be the API key", name)
    return password
