"""The settings of what runs on this host, what opens it, and its probes."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.environment import EnvironmentModel, VariableNames
from llm_pipeline.config.model import ConfigModel, Gpus, HostPath, PathText, PositiveGib, Word
from llm_pipeline.config.server_place import ServerModel, ServerPorts


class Interpreter(EnvironmentModel):
    """A Python interpreter of the host that the Airflow worker runs on.

    Attributes:
        python: Its executable.
    """

    runner: Literal["process"] = "process"
    python: HostPath

    def interpreter_here(self) -> str:
        """Its executable."""
        return self.python


class Mount(ConfigModel):
    """A directory of the host inside a container.

    Attributes:
        source: Directory of the host.
        path: Where the container sees it; the same path if None.
        writable: Whether the stage may write there. The store and the work directory must be.
    """

    source: HostPath
    path: PathText | None = None
    writable: bool = False


class ContainerEnvironment(EnvironmentModel):
    """A container on the worker's host, started by the program `docker` or `podman`.

    Attributes:
        image: Image with its tag or digest; None for the target's own `container`. A tag is resolved to its digest
            before anything starts, and that digest is run and recorded.
        python: The interpreter inside the image that has this package.
        gpus: GPUs of the container: their number, or `all`.
        mounts: Directories besides the store and the work directory, which are always there.
        variables: Names of environment variables that are handed on; their values are in no configuration, but whoever
            may use the engine sees them (`docker inspect`).
        memory_gib: Limit of host memory; None for none.
        shared_memory_gib: Size of `/dev/shm`.
        network: Network of the container, in the engine's words.
        user: `uid:gid` inside; None for the worker's own.
    """

    runner: Literal["docker", "podman"]
    image: Word | None = None
    python: PathText = "python3"
    gpus: Gpus | Literal["all"] = 0
    mounts: Annotated[tuple[Mount, ...], Field(max_length=256)] = ()
    variables: VariableNames = ()
    memory_gib: PositiveGib | None = None
    shared_memory_gib: PositiveGib = 1.0
    network: Word = "bridge"
    user: Word | None = None

    def is_deferrable(self) -> bool:
        """Its container runs on without the task."""
        return True

    def is_seen_on_its_host_only(self) -> bool:
        """Whether the engine is this host's: Podman's is, and Docker's unless `DOCKER_HOST` says otherwise."""
        address = os.environ.get("DOCKER_HOST", "unix:") if self.runner == "docker" else "unix:"
        return address.startswith(("unix:", "npipe:", "fd:"))


_FOLDER = "llm_pipeline.adapters.local"
RUNNER = Adapter(
    config=Interpreter,
    open=OnCall(f"{_FOLDER}.runner:ProcessRunner"),
    probe=OnCall(f"{_FOLDER}.runner:ProcessRunner.probe"),
)
CONTAINERS = Adapter(
    config=ContainerEnvironment,
    open=OnCall(f"{_FOLDER}.container:ContainerRunner"),
    probe=OnCall(f"{_FOLDER}.container:engine_and_image"),
)


class LocalServer(ServerPorts, ServerModel):
    """A tritonserver of this host, on loopback ports: the one in `triton_home`."""

    is_process_here: ClassVar[bool] = True

    kind: Literal["local"] = "local"


SERVER = Adapter(config=LocalServer, open=OnCall(f"{_FOLDER}.server:LocalControl"))
