"""A second server of the production version, beside staging, for the time of a comparison.

    with comparison_server(store, production, ports, triton_home=home, python=python, state=state) as endpoint:
        ...

A gate never puts load on production itself: its users would pay for it, and their traffic would be in the figures. What
a killed comparison left running is stopped by the next comparison, and by `staging_down` through `stop_server(state)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.repository_links import fetch_links, refuse_other_host
from llm_pipeline.serving.triton_server import start_server, stop_server
from llm_pipeline.store.artifact_store import ArtifactStore


@contextmanager
def comparison_server(
    store: ArtifactStore,
    production: ArtifactRef,
    ports: ServerPorts,
    *,
    triton_home: Path,
    python: Path,
    state: Path,
    wait_seconds: float = 60.0,
) -> Iterator[Endpoint]:
    """Serve production's model repository on `ports` until the block ends, however it ends.

    Args:
        store: Where the repository is.
        production: The repository that production serves.
        ports: Its own ports, and its own GPUs where the host has several.
        triton_home: Directory with the unpacked nvidia-pytriton wheel, or an installed server.
        python: Interpreter of the model's code.
        state: The comparison's own slot directory.
        wait_seconds: Longest wait for the loaded models.

    Raises:
        Unsupported: Production's engine was not built for this host.
        IntegrityError: The repository, or what it links to, is missing or damaged.
        ServerFailed: The server ended at its start.
        ConfigError: A port is taken.
        Transient: The models were not loaded in time.
    """
    repository = store.fetch(production)
    refuse_other_host(repository)
    stop_server(state)
    try:
        server = start_server(
            repository,
            ports,
            triton_home=triton_home,
            python=python,
            state=state,
            digest=production.digest,
            links=fetch_links(repository, store),
            wait_seconds=wait_seconds,
        )
        yield server.endpoint
    finally:
        stop_server(state)
