"""Server control: a candidate's server is started, found, drained and stopped in the same way wherever it runs.

    control = open_control(place, slot)
    server = control.start(candidate, wait_seconds=600)
    server.endpoint                 # where it answers, and what a client needs
    control.find()                  # the same server, from any process of this host
    control.stop(drain_seconds=30)  # removes all that it left; does nothing without a server

No process memory is needed to find or stop a server, so a server whose starter was killed can be stopped, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llm_pipeline.base.adapters import Adapter, adapter
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import ServerPlace, ServerPorts
from llm_pipeline.config.target import Target
from llm_pipeline.serving.ports import loopback_endpoint

if TYPE_CHECKING:
    from llm_pipeline.serving.kubernetes_manifests import ServedRelease


@dataclass(frozen=True)
class ServerAdapter(Adapter):
    """An adapter of servers whose address follows from names, so that their settings need no `endpoint`.

    Attributes:
        endpoint: Where its server answers, from `(place, release_name, target_name)`; it asks nobody.
    """

    endpoint: Callable[[Any, str, str], Endpoint]


@dataclass(frozen=True)
class StagingSlot:
    """Where the state of a server is kept, whose it is, and what a local server is started with.

    Attributes:
        state: Directory of its records, logs and view of the repository.
        release_name: Name of the release config.
        target: What is served, and on which GPUs.
        triton_home: Directory with the unpacked nvidia-pytriton wheel, or an installed server; for local servers.
        python: Interpreter of the served model's code; for local servers.
    """

    state: Path
    release_name: str
    target: Target
    triton_home: Path | None = None
    python: Path | None = None


@dataclass(frozen=True)
class Candidate:
    """A model repository to serve.

    Attributes:
        repository: Its directory, read-only.
        digest: Digest of the artifact, by which the server is recognized.
        links: Local directories of what it links to, by their place in it.
        release: Its release, for pods, which fetch the artifacts themselves.
    """

    repository: Path
    digest: str
    links: Mapping[str, Path] = field(default_factory=dict)
    release: ServedRelease | None = None


@dataclass(frozen=True)
class StagedServer:
    """A server that serves a candidate.

    Attributes:
        endpoint: Where it answers.
        digest: Digest of the repository that it was started for.
        ready_seconds: Time from the start to a loaded model; 0 if it is no longer known.
    """

    endpoint: Endpoint
    digest: str
    ready_seconds: float = 0.0


class ServerControl(Protocol):
    """Control of one candidate's server. Implementations keep no state in memory that another process would need."""

    def start(self, candidate: Candidate, *, wait_seconds: float) -> StagedServer:
        """Serve a candidate and wait until its model is loaded; the server that serves it already, if one does.

        A failed start is undone.

        Raises:
            SlotBusy: Another candidate is served there.
            ConfigError: The place is wrong: a port is taken, an image or a repository is missing.
            Unsupported: The candidate cannot be served there.
            ServerFailed: The server ended, or refused the model.
            Transient: The model was not loaded in time, or the place cannot be reached.
        """
        ...

    def find(self) -> StagedServer | None:
        """The server of the slot while it is there; None otherwise.

        Raises:
            Transient: The place cannot be reached.
        """
        ...

    def stop(self, *, drain_seconds: float = 0) -> None:
        """End the server and remove all it left. Does nothing if there is none.

        Raises:
            Transient: The place cannot be reached, or something does not end; try again.
        """
        ...


def open_control(place: ServerPlace, slot: StagingSlot) -> ServerControl:
    """The control of the server of a place; starts nothing and sends nothing."""
    control: ServerControl = adapter("server_controls", place.kind).open(place, slot)
    return control


def endpoint_of(place: ServerPlace, *, release_name: str, target_name: str, own_metrics: str = "") -> Endpoint:
    """Where the server of a place answers, whether it runs or not.

    Args:
        place: The place.
        release_name: Name of the release config, by which a Service of a cluster is named.
        target_name: Name of the target, likewise.
        own_metrics: As in `loopback_endpoint`.
    """
    if isinstance(place, ServerPorts):
        return loopback_endpoint(place, own_metrics)
    given: Endpoint | None = getattr(place, "endpoint", None)
    return given or adapter("server_controls", place.kind).endpoint(place, release_name, target_name)
