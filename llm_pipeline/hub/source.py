"""Where a model's files come from: what every source offers, and the errors that all of them raise."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from llm_pipeline.artifacts.model_files import Selection
from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.errors import Terminal, Transient
from llm_pipeline.base.logging import get_logger

PUBLIC_ENDPOINT = "https://huggingface.co"
_PORTS = {"http": 80, "https": 443}
_CONNECTION_SECONDS = 5.0

log = get_logger(__name__)


class SourceRefused(Terminal):
    """The source refused the request, and will refuse it again."""


class SourceUnavailable(Transient):
    """The source, or the way to it, does not work right now.

    Attributes:
        retry_after_seconds: How long the source asks us to wait; None when it does not say.
    """

    retry_after_seconds: float | None = None


@dataclass(frozen=True)
class ModelLook:
    """A model's files before it is pinned.

    Attributes:
        name: What was looked at, for people.
        sizes: Bytes of each file that would be fetched, by path.
        read: The bytes of a file: path, first byte, and how many; fewer at the file's end.
    """

    name: str
    sizes: Mapping[str, int]
    read: Callable[[str, int, int], bytes]


class FileSource(Protocol):
    """Gives files that are pinned already."""

    def fetch(self, model: PinnedModel, file: HubFile, directory: Path) -> None:
        """Bring a file into a directory, under its path; several threads do so at once.

        Whether its bytes are the right ones is not its business: `fetch_files` hashes all that comes from any source.

        Raises:
            SourceRefused: No access to it any more.
            SourceUnavailable: Throttled, a server error, a timeout, a lost connection.
            IntegrityError: The file is no longer what was pinned.
            OSError: The directory cannot be written to.
        """


class Source(FileSource, Protocol):
    """A place that models are read from: it says what a model is at a moment, and gives its files."""

    def resolve(self, model_id: str, revision: str) -> PinnedModel:
        """Pin a branch, tag or commit, choose its files, and check that they may be read.

        Raises:
            SourceRefused: No such model or revision, or no access to it.
            SourceUnavailable: The source cannot be asked now.
            Unsupported: No safetensors weights, or not a full model.
            IntegrityError: The listing is malformed, or names unsafe files.
        """

    def look(self, model_id: str, revision: str) -> ModelLook:
        """List what a model consists of, without pinning it: no large file is hashed.

        Raises:
            ConfigError: There is no such directory.
            SourceRefused: No such model or revision, or no access to it.
            SourceUnavailable: The source cannot be asked now.
            Unsupported: No safetensors weights, or not a full model.
            IntegrityError: The listing is malformed, or names unsafe files.
        """


def report_resolved(model: PinnedModel, selection: Selection) -> None:
    """Log what was pinned, and what of the source is left where it is."""
    log.info(
        "resolved",
        model=model.id,
        commit=model.commit,
        files=len(model.files),
        bytes=model.size,
        skipped=len(selection.skipped),
        refused=", ".join(sorted(selection.refused)[:8]) or "none",
        license=model.license or "none stated",
    )


def hub_address(endpoint: str | None) -> str:
    """The URL of a deployment's hub: its own, that of `HF_ENDPOINT`, or the public one; no slash at the end."""
    return (endpoint or os.environ.get("HF_ENDPOINT") or PUBLIC_ENDPOINT).rstrip("/")


def require_listening(endpoint: str | None) -> None:
    """Refuse a hub at whose address nothing listens, before its client is loaded.

    Behind a proxy nothing is known, and a client that is told to stay offline says so itself.

    Raises:
        SourceUnavailable: The name is not known, or no connection is made.
    """
    address = hub_address(endpoint)
    parts = urlsplit(address)
    told = getproxies() or os.environ.get("HF_HUB_OFFLINE")
    if told or parts.scheme not in _PORTS or not parts.hostname:
        return
    try:
        socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), _CONNECTION_SECONDS).close()
    except OSError as error:
        hint = "check the network, the proxy (HTTPS_PROXY) and hub.endpoint of the deployment"
        problem = f"no answer from {address}: {error.strerror or error}"
        raise SourceUnavailable(problem, where=address, hint=hint) from error
