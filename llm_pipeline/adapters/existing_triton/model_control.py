"""Model control of a running Triton: which versions it has, and loading and unloading models, over HTTP or gRPC.

Source: the model repository extension of the inference protocol (triton-inference-server/server,
`docs/protocol/extension_model_repository.md`). The server must run with `--model-control-mode=explicit`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, Protocol

from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ConfigError, Terminal, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.endpoint_access import grpc_security, request_headers, tls_context
from llm_pipeline.serving.protocols import header_secrets, refusal_text, without

ModelConfigDocument = Mapping[str, Any]
"""A model's configuration as JSON, with the names of `model_config.proto`."""

_READY = "READY"
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_NOT_ALLOWED_STATUS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_RESTRICTED = "triton-grpc-protocol-"
"""Triton looks for the key of a restricted protocol behind this prefix; gateways look for the bare name."""

_AWAY = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")
_NOT_ALLOWED = ("StatusCode.UNAUTHENTICATED", "StatusCode.PERMISSION_DENIED")
_RESTRICTED_ANSWER = "This protocol is restricted"


class ModelRefused(Terminal):
    """The server refused to load or unload a model; the message is its reason."""


@dataclass(frozen=True)
class ModelVersion:
    """A version of a model, as the server's repository index has it.

    Attributes:
        number: The version; 0 for a model that has none.
        state: `READY`, `LOADING`, `UNLOADING`, `UNAVAILABLE`, or empty for one that was never loaded.
        reason: Why it is unavailable.
    """

    number: int
    state: str
    reason: str

    @property
    def ready(self) -> bool:
        """Whether the server says that it takes requests; a dead stub does not change that."""
        return self.state == _READY


class ModelControl(Protocol):
    """One server's model control.

    Every call raises Transient when the server does not answer, and ConfigError when it denies access.
    """

    def versions(self, model: str) -> tuple[ModelVersion, ...]:
        """The versions of a model that the server knows of, loaded or not."""
        ...

    def config(self, model: str) -> ModelConfigDocument | None:
        """The configuration that a model was loaded with, of its highest version; None when it is not loaded."""
        ...

    def is_ready(self, model: str, version: int) -> bool:
        """Whether a version takes requests. The server's own readiness says nothing about a model."""
        ...

    def load(self, model: str, config: ModelConfigDocument | None = None) -> None:
        """Load a model, or change what is loaded of it, and wait until that is done.

        Versions that stay go on serving. Loading what has not changed does nothing.

        Args:
            model: Its name.
            config: Used instead of the model's `config.pbtxt`, until the next load.

        Raises:
            ModelRefused: It cannot be loaded; what was loaded before still serves.
        """
        ...

    def unload(self, model: str) -> None:
        """Unload all versions of a model. The server answers before they are unloaded."""
        ...

    def close(self) -> None:
        """Close the connections to the server."""
        ...


class HttpModelControl:
    """Model control over HTTP, with a connection for each call, so that a restarted server is reached again.

    Args:
        endpoint: The server's addresses, headers and certificates.
        timeout_seconds: Longest wait for an answer.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_seconds: float) -> None:
        self._url = endpoint.url.rstrip("/")
        self._headers = request_headers(endpoint)
        self._secrets = header_secrets(self._headers)
        self._tls = tls_context(endpoint)
        self._timeout_seconds = timeout_seconds

    def versions(self, model: str) -> tuple[ModelVersion, ...]:
        status, body = self._call("POST", "/v2/repository/index", {})
        if status != HTTPStatus.OK:
            raise Transient(f"the server does not list its models: {self._reason(body)}", where=self._url)
        try:
            return tuple(
                ModelVersion(int(entry.get("version") or 0), entry.get("state", ""), entry.get("reason", ""))
                for entry in json.loads(body)
                if entry["name"] == model
            )
        except _NOT_UNDERSTOOD as error:
            raise self._not_a_triton("list of models") from error

    def config(self, model: str) -> ModelConfigDocument | None:
        status, body = self._call("GET", f"/v2/models/{model}/config")
        if status != HTTPStatus.OK:
            return None
        try:
            return dict(json.loads(body))
        except _NOT_UNDERSTOOD as error:
            raise self._not_a_triton("configuration of a model") from error

    def is_ready(self, model: str, version: int) -> bool:
        return self._call("GET", f"/v2/models/{model}/versions/{version}/ready")[0] == HTTPStatus.OK

    def load(self, model: str, config: ModelConfigDocument | None = None) -> None:
        parameters = {"parameters": {"config": json.dumps(config)}} if config else {}
        self._act(model, "load", parameters)

    def unload(self, model: str) -> None:
        self._act(model, "unload", {})

    def close(self) -> None:
        """No connection is kept open."""

    def _act(self, model: str, verb: str, body: dict[str, Any]) -> None:
        status, answer = self._call("POST", f"/v2/repository/models/{model}/{verb}", body)
        if status != HTTPStatus.OK:
            raise ModelRefused(f"{model}: {self._reason(answer)}", where=self._url)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        try:
            answer = call(
                self._url + path,
                seconds=self._timeout_seconds,
                method=method,
                headers=self._headers,
                body=None if body is None else json.dumps(body).encode(),
                tls=self._tls,
            )
        except OSError as error:
            raise Transient(f"no server answers: {without(str(error), self._secrets)}", where=self._url) from None
        if answer.status in _NOT_ALLOWED_STATUS:
            raise ConfigError(
                f"the server refuses access: {self._reason(answer.body)}",
                where=f"{self._url}{path}",
                hint="name the header that opens its restricted APIs under header_variables of the endpoint",
            )
        return answer.status, answer.body

    def _reason(self, body: bytes) -> str:
        return without(refusal_text(body), self._secrets)

    def _not_a_triton(self, wanted: str) -> ConfigError:
        return ConfigError(
            f"this is not a Triton: it answers with no {wanted}", where=self._url, hint="is url its HTTP port?"
        )


class GrpcModelControl:
    """Model control over one gRPC channel.

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
        self._secrets = header_secrets(headers)
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
            status, message = str(error.status()), without(str(error.message()), self._secrets)
            if status in _NOT_ALLOWED or _RESTRICTED_ANSWER in message:
                raise ConfigError(
                    f"the server refuses access: {message}",
                    where=self._where,
                    hint="name the header that opens its restricted protocols under header_variables of the endpoint",
                ) from error
            if status in _AWAY and "failed to load" not in message:
                raise Transient(f"no server answers: {message}", where=self._where) from error
            raise ModelRefused(message, where=self._where) from error


def open_model_control(
    endpoint: Endpoint, protocol: Literal["http", "grpc"] = "http", *, timeout_seconds: float = 600.0
) -> ModelControl:
    """The model control of the server at an endpoint.

    Args:
        endpoint: Its addresses, headers and certificates.
        protocol: What to speak with the server.
        timeout_seconds: Longest wait for an answer; a load answers when the model is loaded.

    Raises:
        ConfigError: A header's variable is not set, or the certificates cannot be read.
    """
    if protocol == "grpc":
        return GrpcModelControl(endpoint, timeout_seconds=timeout_seconds)
    return HttpModelControl(endpoint, timeout_seconds=timeout_seconds)
