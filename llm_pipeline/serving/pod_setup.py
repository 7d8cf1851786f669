"""What a serving pod does before its server starts: lay out the repository, and wait for the pods of its group."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.serving.repository_links import fetch_links, refuse_other_host
from llm_pipeline.serving.triton_runtime import link_repository
from llm_pipeline.store.artifact_store import ArtifactStore

log = get_logger(__name__)

_POLL_SECONDS = 1.0
_CONNECT_SECONDS = 5.0


def lay_out_view(store: ArtifactStore, ref: ArtifactRef, view: Path) -> None:
    """Make a server's view of a model repository: links to verified artifacts, in place of what is there.

    Raises:
        IntegrityError: The repository, or what it links to, is missing or damaged.
        Unsupported: Its engine was built for another kind of host.
    """
    repository = store.fetch(ref)
    refuse_other_host(repository)
    links = fetch_links(repository, store)
    link_repository(repository, view, links)
    log.info("the repository is laid out", repository=str(ref), view=str(view), links=len(links))


def await_listeners(addresses: Sequence[str], seconds: float) -> None:
    """Wait until a process listens on every `host:port`.

    Raises:
        ConfigError: An address has no port.
        Transient: One of them has no listener in time.
    """
    deadline = time.monotonic() + seconds
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"not host:port: {address!r}")
        listens = partial(_listens, host, int(port))
        if not wait_until(listens, deadline - time.monotonic(), every=_POLL_SECONDS):
            raise Transient(f"no process listens after {seconds:g} s", where=address, hint="see the log of that pod")
        log.info("a pod of the group listens", address=address)


def _listens(host: str, port: int) -> bool:
    """False also while the name does not resolve: a pod's name resolves once the pod exists."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
