"""Model control over gRPC, with or without TLS."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.control.model_control import ModelConfigDocument, ModelRefused, ModelVersion
from llm_pipeline.serving.endpoint_access import grpc_security, request_headers

_RESTRICTED = "triton-grpc-protocol-"
"""Triton looks for the key of a restricted protocol behind this prefix; gateways look for the bare name."""

_AWAY = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")
_NOT_ALLOWED = ("StatusCode.UNAUTHENTICATED", "StatusCode.PERMISSION_DENIED")
_RESTRICTED_ANSWER = "This protocol is restricted"


class GrpcModelControl:
    """One channel.

    Args:
        endpoint: The server's addresses, headers and certificates; a `ca_file` or an https URL means TLS.
        timeout_seconds: Longest wait for an answer.

    Raises:
        ConfigError: The endpoint has no gRPC address.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_seconds: float) -> None:
        from tritonclient.grpc import InferenceServerClient

        if endpoint.grpc is None:
            raise ConfigError("the endpoint has no gRPC address", where=endpoint.url, hint="name it as grpc")
        self._where = f"grpc://{endpoint.grpc}"
        self._timeout_seconds = timeout_seconds
        headers = {name.lower(): value for name, value in request_headers(endpoint).items()}
        self._headers = headers | {f"{_RESTRICTED}{name}": value for name, value in headers.items()}
        self._client = InferenceServerClient(endpoint.grpc, **grpc_security(endpoint))

    def versions(self, model: str) -> tuple[ModelVersion, ...]:
        index = self._call(self._client.get_model_repository_index)
        return tuple(
            ModelVersion(int(entry.version or 0), entry.state, entry.reason)
            for entry in index.models
            if entry.name == model
        )

    def config(self, model: str) -> ModelConfigDocument | None:
        from google.protobuf.json_format import MessageToDict

        try:
            found = self._call(self._client.get_model_config, model)
        except ModelRefused:
            return None
        return dict(MessageToDict(found.config, preserving_proto_field_name=True))

    def is_ready(self, model: str, version: int) -> bool:
        return bool(self._call(self._client.is_model_ready, model, str(version)))

    def load(self, model: str, config: ModelConfigDocument | None = None) -> None:
        self._call(self._client.load_model, model, config=json.dumps(config) if config else None)

    def unload(self, model: str) -> None:
        self._call(self._client.unload_model, model)

    def close(self) -> None:
        """Close the channel."""
        self._client.close()

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        from tritonclient.utils import InferenceServerException

        try:
            return function(*args, headers=self._headers, client_timeout=self._timeout_seconds, **options)
        except InferenceServerException as error:
            status, message = str(error.status()), str(error.message())
            if status in _NOT_ALLOWED or _RESTRICTED_ANSWER in message:
                raise ConfigError(
                    f"the server refuses access: {message}",
                    where=self._where,
                    hint="name the header that opens its restricted protocols under header_variables of the endpoint",
                ) from error
            if status in _AWAY and "failed to load" not in message:
                raise Transient(f"no server answers: {message}", where=self._where) from error
            raise ModelRefused(message, where=self._where) from error
