"""What a client needs to access an endpoint (headers, TLS), and the metrics of the model that it serves.

The values of headers come from the environment. They are checked here, because HTTP and gRPC libraries put a value
that they reject into their exception.
"""

from __future__ import annotations

import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Any

from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.protocols import protocol_of, whole_sum


def request_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers of every request to an endpoint, with their values.

    Raises:
        ConfigError: A variable is not set, or has characters that no header may have.
    """
    headers = endpoint.headers()
    for header, value in headers.items():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise ConfigError(
                f"{endpoint.variables[header]} holds line ends, blanks or characters that no header may have",
                where=endpoint.url,
                hint="set it in the environment of the workers to the bare value",
            )
    return headers


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """The context of TLS connections to an endpoint; None where its URL has no TLS.

    Raises:
        ConfigError: The file of certificates cannot be read.
    """
    if not endpoint.url.startswith("https://"):
        return None
    try:
        return ssl.create_default_context(cafile=endpoint.ca_file)
    except OSError as error:  # which an SSLError is
        raise _unreadable(endpoint, error) from error


def grpc_security(endpoint: Endpoint) -> dict[str, Any]:
    """Options of `tritonclient.grpc` for an endpoint's TLS, which a `ca_file` or an https URL means; none without.

    Raises:
        ConfigError: The file of certificates cannot be read.
    """
    if endpoint.ca_file is None and not endpoint.url.startswith("https://"):
        return {}
    try:
        if endpoint.ca_file is not None:
            Path(endpoint.ca_file).read_bytes()
    except OSError as error:
        raise _unreadable(endpoint, error) from error
    return {"ssl": True, "root_certificates": endpoint.ca_file}


def active_requests(endpoint: Endpoint, *, seconds: float = 5.0) -> int | None:
    """Requests that wait or run, from the server's own metrics; None if they cannot be read or do not tell.

    Args:
        endpoint: The server's addresses, headers and certificates.
        seconds: Longest wait for the metrics.
    """
    if endpoint.metrics_url is None:
        return None
    try:
        headers, tls = request_headers(endpoint), tls_context(endpoint)
        answer = call(endpoint.metrics_url, seconds=seconds, headers=headers, tls=tls)
        lines = answer.text.splitlines() if answer.status == HTTPStatus.OK else []
        return whole_sum(lines, *protocol_of(endpoint).metrics.active)
    except (OSError, ValueError):
        return None


def _unreadable(endpoint: Endpoint, error: OSError) -> ConfigError:
    return ConfigError(f"ca_file: {error}", where=endpoint.ca_file or endpoint.url, hint="name a PEM file")
