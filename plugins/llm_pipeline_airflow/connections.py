"""Secrets from Airflow's connections, and so from its secrets backends, for what Airflow runs.

The code that needs a secret reads an environment variable, under Airflow as without it. Here the variables that a
deployment gives to connections get their values, in the process that asks: whoever starts a further process hands on
what that one needs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.release.loading import ConfiguredRelease, load_config
from llm_pipeline_airflow.faults import get_logger

log = get_logger(__name__)

_LOGIN = "AWS_ACCESS_KEY_ID"
_given: dict[str, tuple[str, str]] = {}
"""The values that came from connections into this process, each with its connection: a worker's own variable has
another value, or none here."""
_both = threading.Lock()
"""Held where the environment and `_given` are read or written: pages and triggers fetch secrets in several threads."""


def config_with_secrets(config_path: str | Path) -> ConfiguredRelease:
    """A release config and its deployment, whose secrets are then in this process's environment.

    Raises:
        ConfigError: The config is wrong, or a variable with a connection is set already.
    """
    loaded = load_config(Path(config_path))
    fetch_secrets(loaded.deployment.airflow_connections)
    return loaded


def deployment_with_secrets(file: str | Path) -> Deployment:
    """A deployment, whose secrets are then in this process's environment.

    Raises:
        ConfigError: It is wrong, or a variable with a connection is set already.
    """
    deployment = load_yaml(Path(file), Deployment)
    fetch_secrets(deployment.airflow_connections)
    return deployment


def fetch_secrets(connections: Mapping[str, str]) -> None:
    """Put secrets into this process's environment.

    What a connection does not have is missed by who needs it, and the log says why. A value that the same connection
    gave before stays; one that another deployment's gave goes.

    Args:
        connections: Names of connections, by the variable. The value is the connection's password, but for
            `AWS_ACCESS_KEY_ID`: that is its login.

    Raises:
        ConfigError: A variable is set by whoever started this process, too.
    """
    for variable, name in connections.items():
        value = _value(name, "login" if variable == _LOGIN else "password")
        with _both:
            there, (given, giver) = os.environ.get(variable), _given.get(variable, ("", ""))
            if there and there != given:
                raise ConfigError(
                    f"the secret {variable} is in the environment, and the connection {name} is named for it",
                    hint="keep one of them: unset the variable for Airflow's processes, or take the connection out",
                )
            if value:
                os.environ[variable], _given[variable] = value, (value, name)
            elif giver not in ("", name):
                os.environ.pop(variable, None)
                del _given[variable]


def _value(name: str, field: str) -> str:
    """Of a connection; empty, and a line in the log, where there is none. Airflow masks passwords in logs from here."""
    try:
        found: Any = getattr(Connection.get(name), field)
    except (AirflowException, AirflowRuntimeError, ValueError) as error:  # the last: its text is no connection
        log.warning("the connection %s with a secret cannot be had: %s", name, type(error).__name__)
        return ""
    if not found:
        log.warning("the connection %s has no %s, which should be the secret", name, field)
    return found or ""
