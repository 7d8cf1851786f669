"""Where a served model answers, and what a client needs to reach it."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.model import ConfigModel, ConnectionId, HostPath, PlainUrl, VariableName, Word


class Endpoint(ConfigModel):
    """The addresses of a server with OpenAI's API.

    Attributes:
        url: What comes before `/v1`, e.g. `http://127.0.0.1:8000`.
        metrics_url: URL of its Prometheus metrics; None when they cannot be read.
        header_variables: HTTP headers that every request carries, each with the environment variable
            that holds its value: gateways ask for some. The values are written nowhere.
        api_key_variable: Environment variable with an API key, sent as `Authorization: Bearer ...`; None for none. The
            key is written nowhere.
        api_key_connection: Airflow connection whose password is that key, for what Airflow runs: it is put into the
            variable of the processes that need it, which must not be set for the workers as well.
        openai_model: Name of the model at a server of somebody else's (`vllm serve --served-model-name`); None for one
            of ours, which has one model and says which release it is.
        ca_file: Certificates that its TLS certificate is checked against; None for the system's.
    """

    url: PlainUrl
    metrics_url: PlainUrl | None = None
    header_variables: Annotated[dict[Word, VariableName], Field(max_length=64)] = Field(default={})
    api_key_variable: VariableName | None = None
    api_key_connection: ConnectionId | None = None
    openai_model: Word | None = None
    ca_file: HostPath | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that hold headers' values, by header."""
        key = {} if self.api_key_variable is None else {"Authorization": self.api_key_variable}
        return {**self.header_variables, **key}

    def headers(self) -> dict[str, str]:
        """The headers with their values.

        Raises:
            ConfigError: A variable is not set.
        """
        if missing := sorted(name for name in self.variables.values() if not os.environ.get(name)):
            raise ConfigError(
                f"{', '.join(missing)} must hold a header's value, and is empty",
                where=self.url,
                hint="set it in the environment of the workers",
            )
        values = {header: os.environ[name] for header, name in self.variables.items()}
        if self.api_key_variable is not None:
            values["Authorization"] = f"Bearer {values['Authorization']}"
        return values

    @model_validator(mode="after")
    def _before_the_version(self) -> Endpoint:
        if self.url.rstrip("/").endswith("/v1"):
            raise ValueError("url must end before /v1, which is added to it")
        return self

    @model_validator(mode="after")
    def _one_authorization(self) -> Endpoint:
        if self.api_key_variable and any(header.lower() == "authorization" for header in self.header_variables):
            raise ValueError("api_key_variable and the header Authorization exclude each other")
        if self.api_key_connection and not self.api_key_variable:
            raise ValueError("api_key_connection needs api_key_variable, which hands its password on")
        return self


def _has_a_model(endpoint: Endpoint) -> Endpoint:
    if endpoint.openai_model is None:
        raise ValueError("openai_model must name the server's model")
    return endpoint


OpenAiEndpoint = Annotated[Endpoint, AfterValidator(_has_a_model)]
"""The endpoint of a server with OpenAI's API."""
