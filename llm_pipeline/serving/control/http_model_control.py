"""Model control over HTTP."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.control.model_control import ModelConfigDocument, ModelRefused, ModelVersion
from llm_pipeline.serving.endpoint_access import request_headers, tls_context

_NOT_ALLOWED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class HttpModelControl:
    """A connection for each call: a server that was away for a while is asked again without ado.

    Args:
        endpoint: The server's addresses, headers and certificates.
        timeout_seconds: Longest wait for an answer.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_seconds: float) -> None:
        self._url = endpoint.url.rstrip("/")
        self._headers = request_headers(endpoint)
        self._tls = tls_context(endpoint)
        self._timeout_seconds = timeout_seconds

    def versions(self, model: str) -> tuple[ModelVersion, ...]:
        status, body = self._call("POST", "/v2/repository/index", {})
        if status != HTTPStatus.OK:
            raise Transient(f"the server does not tell its models: {_reason(body)}", where=self._url)
        index: list[dict[str, str]] = json.loads(body)
        return tuple(
            ModelVersion(int(entry.get("version") or 0), entry.get("state", ""), entry.get("reason", ""))
            for entry in index
            if entry["name"] == model
        )

    def config(self, model: str) -> ModelConfigDocument | None:
        status, body = self._call("GET", f"/v2/models/{model}/config")
        return dict(json.loads(body)) if status == HTTPStatus.OK else None

    def is_ready(self, model: str, version: int) -> bool:
        return self._call("GET", f"/v2/models/{model}/versions/{version}/ready")[0] == HTTPStatus.OK

    def load(self, model: str, config: ModelConfigDocument | None = None) -> None:
        parameters = {"parameters": {"config": json.dumps(config)}} if config else {}
        self._act(model, "load", parameters)

    def unload(self, model: str) -> None:
        self._act(model, "unload", {})

    def close(self) -> None:
        """Nothing is kept open."""

    def _act(self, model: str, verb: str, body: dict[str, Any]) -> None:
        status, answer = self._call("POST", f"/v2/repository/models/{model}/{verb}", body)
        if status != HTTPStatus.OK:
            raise ModelRefused(f"{model}: {_reason(answer)}", where=self._url)

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
            raise Transient(f"no server answers: {error}", where=self._url) from error
        if answer.status in _NOT_ALLOWED:
            raise ConfigError(
                f"the server refuses access: {_reason(answer.body)}",
                where=f"{self._url}{path}",
                hint="name the header that opens its restricted APIs under header_variables of the endpoint",
            )
        return answer.status, answer.body


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300] or "no reason given"
