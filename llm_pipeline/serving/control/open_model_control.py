"""From an endpoint to the control of its models, by the protocol that is wanted."""

from __future__ import annotations

from typing import Literal

from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.control.grpc_model_control import GrpcModelControl
from llm_pipeline.serving.control.http_model_control import HttpModelControl
from llm_pipeline.serving.control.model_control import ModelControl


def open_model_control(
    endpoint: Endpoint, protocol: Literal["http", "grpc"] = "http", *, timeout_seconds: float = 600.0
) -> ModelControl:
    """The model control of the server at an endpoint.

    Args:
        endpoint: Its addresses, headers and certificates.
        protocol: The one to talk.
        timeout_seconds: Longest wait for an answer; a load answers when the model is loaded.

    Raises:
        ConfigError: A header's variable is not set, or the certificates cannot be read.
    """
    if protocol == "grpc":
        return GrpcModelControl(endpoint, timeout_seconds=timeout_seconds)
    return HttpModelControl(endpoint, timeout_seconds=timeout_seconds)
