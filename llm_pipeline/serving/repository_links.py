"""What a server needs before it starts: linked artifacts, a host that fits, and in pods the others of its group.

`links.json` maps a directory inside the repository to an artifact's kind and digest, so that no weights are copied.
Before a server starts, they are fetched from the store, verified, and given to `start_server` as local directories.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

from llm_pipeline.artifacts import engine_description
from llm_pipeline.artifacts.engine_description import ENGINE_FILE, EngineDescription
from llm_pipeline.artifacts.repository_layout import ENGINE_DIRECTORY, LINKS_FILE, MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.serving.triton_runtime import link_repository
from llm_pipeline.store.artifact_store import ArtifactStore

log = get_logger(__name__)

_POLL_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_LINKS = TypeAdapter(dict[str, ArtifactRef])


def write_links(repository: Path, links: Mapping[str, ArtifactRef]) -> None:
    """Write the links of a repository; no file for none."""
    if links:
        document = {name: ref.model_dump(mode="json") for name, ref in links.items()}
        (repository / LINKS_FILE).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_links(repository: Path) -> dict[str, ArtifactRef]:
    """The links of a repository; none without the file.

    Raises:
        IntegrityError: The file is damaged, or a link leads out of the repository.
    """
    path = repository / LINKS_FILE
    try:
        links = _LINKS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise IntegrityError(f"not a list of links: {error}", where=str(path)) from error
    for name in links:
        if name.startswith("/") or not PurePosixPath(name).parts or {"..", "."} & set(name.split("/")):
            raise IntegrityError(f"the link {name!r} leads out of the repository", where=str(path))
    return links


def fetch_links(repository: Path, store: ArtifactStore) -> dict[str, Path]:
    """Verified local directories of everything that a repository links to, by where they belong in it.

    Raises:
        IntegrityError: An artifact is missing or damaged.
    """
    return {name: store.fetch(ref) for name, ref in read_links(repository).items()}


def refuse_other_host(repository: Path) -> None:
    """Refuse a repository whose engine was built for another kind of host; without a description it may go anywhere.

    Raises:
        IntegrityError: The engine's description is damaged.
        Unsupported: The host differs; every difference is named.
        Transient: The host's driver does not answer.
    """
    engine = repository / MODEL_NAME / str(MODEL_VERSION) / ENGINE_DIRECTORY
    if (engine / ENGINE_FILE).is_file():
        engine_description.refuse_other_host(EngineDescription.read(engine))


def fetch_servable(store: ArtifactStore, ref: ArtifactRef) -> tuple[Path, dict[str, Path]]:
    """A verified model repository that fits this host, and what it links to, as `fetch_links` has it.

    Raises:
        IntegrityError: The repository, or what it links to, is missing or damaged.
        Unsupported: Its engine was built for another kind of host.
    """
    repository = store.fetch(ref)
    refuse_other_host(repository)
    return repository, fetch_links(repository, store)


def lay_out_view(store: ArtifactStore, ref: ArtifactRef, view: Path) -> None:
    """Make a server's view of a model repository: links to verified artifacts, in place of what is there.

    Raises: As `fetch_servable`.
    """
    repository, links = fetch_servable(store, ref)
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
        if not wait_until(partial(_listens, host, int(port)), deadline - time.monotonic(), every=_POLL_SECONDS):
            raise Transient(f"no process listens after {seconds:g} s", where=address, hint="see the log of that pod")
        log.info("a pod of the group listens", address=address)


def _listens(host: str, port: int) -> bool:
    """False also while the name does not resolve: a pod's name resolves once the pod exists."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
