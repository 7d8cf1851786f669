"""Where a hub is, and whether anything listens there; without the hub's client, which is slow to import."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from llm_pipeline.hub.source import SourceUnavailable

PUBLIC_ENDPOINT = "https://huggingface.co"
_PORTS = {"http": 80, "https": 443}
_SECONDS = 5.0


def hub_address(endpoint: str | None) -> str:
    """The URL of a deployment's hub: its own, that of `HF_ENDPOINT`, or the public one; no slash at the end."""
    return (endpoint or os.environ.get("HF_ENDPOINT") or PUBLIC_ENDPOINT).rstrip("/")


def require_listening(endpoint: str | None) -> None:
    """Refuse a hub at whose address nothing listens; behind a proxy nothing is known.

    Raises:
        SourceUnavailable: The name is not known, or no connection is made.
    """
    address = hub_address(endpoint)
    parts = urlsplit(address)
    if getproxies() or parts.scheme not in _PORTS or not parts.hostname:
        return
    try:
        socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), _SECONDS).close()
    except OSError as error:
        raise SourceUnavailable(
            f"no answer from {address}: {error.strerror or error}",
            where=address,
            hint="check the network, the proxy (HTTPS_PROXY) and hub.endpoint of the deployment",
        ) from error
