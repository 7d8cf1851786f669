"""Where each secret that a deployment names comes from on this host; a value is only looked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.runners.stage_environment import named_secrets, secret_connections


@dataclass(frozen=True)
class SecretSource:
    """One secret.

    Attributes:
        variable: The environment variable that hands it on.
        words: Where it comes from.
        twice: It comes from two places: what Airflow runs refuses that.
    """

    variable: str
    words: str
    twice: bool = False


def secret_sources(deployment: Deployment) -> Iterator[SecretSource]:
    """The secrets of a deployment, by their variables' names."""
    connections = secret_connections(deployment)
    for variable in sorted(named_secrets(deployment)):
        here, connection = bool(os.environ.get(variable)), connections.get(variable)
        if here and connection:
            yield SecretSource(variable, f"the environment, and Airflow's connection {connection}", twice=True)
        elif connection:
            yield SecretSource(variable, f"Airflow's connection {connection}, for what Airflow runs")
        else:
            yield SecretSource(variable, "the environment" if here else "not set")
