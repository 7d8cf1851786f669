"""Where a served model answers, and what a client needs to reach it."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import AfterValidator, model_validator

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.model import ConfigModel, HostPath, PlainUrl, VariableName, Word


class Endpoint(ConfigModel):
    """The addresses of a server with OpenAI's API.

    Attributes:
        url: What comes before `/v1`, e.g. `http://127.0.0.1:8000`.
        metrics_url: URL of its Prometheus metrics; None when they cannot be read.
        api_key_variable: Environment variable with an API key, sent as `Authorization: Bearer ...`; None for none. The
            key is written nowhere.
        openai_model: Name of the model at a server of somebody else's (`vllm serve --served-model-name`); None for one
            of ours, which has one model and says which release it is.
        ca_file: Certificates that its TLS certificate is checked against; None for the system's.
    """

    url: PlainUrl
    metrics_url: PlainUrl | None = None
    api_key_variable: VariableName | None = None
    openai_model: Word | None = None
    ca_file: HostPath | None = None

    def headers(self) -> dict[str, str]:
        """The headers of every request, with their values.

        Raises:
            ConfigError: The variable is not set, or has characters that no header may have: HTTP libraries put a value
                that they reject into their exception.
        """
        if self.api_key_variable is None:
            return {}
        key = os.environ.get(self.api_key_variable, "")
        if not key:
            problem = "must hold the server's key, and is empty"
        elif not (key.isascii() and key.isprintable() and key == key.strip()):
            problem = "holds line ends, blanks or characters that no header may have"
        else:
            return {"Authorization": f"Bearer {key}"}
        hint = "set it in the environment of the workers to the bare value"
        raise ConfigError(f"{self.api_key_variable} {problem}", where=self.url, hint=hint)

    @model_validator(mode="after")
    def _before_the_version(self) -> Endpoint:
        if self.url.rstrip("/").endswith("/v1"):
            raise ValueError("url must end before /v1, which is added to it")
        return self


def _has_a_model(endpoint: Endpoint) -> Endpoint:
    if endpoint.openai_model is None:
        raise ValueError("openai_model must name the server's model")
    return endpoint


OpenAiEndpoint = Annotated[Endpoint, AfterValidator(_has_a_model)]
"""The endpoint of a server with OpenAI's API."""
