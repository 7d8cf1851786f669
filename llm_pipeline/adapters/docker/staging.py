"""The settings of a staging server of kind `docker`, and what opens it."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.environment import VariableNames
from llm_pipeline.config.model import PositiveGib, Word
from llm_pipeline.config.server_place import ServerModel
from llm_pipeline.config.server_ports import ServerPorts


class DockerServer(ServerPorts, ServerModel):
    """The target's container on this host, its ports published on loopback.

    Attributes:
        image: Image with its tag or digest; None for the target's own `container`. A tag is resolved to its digest
            before the server starts.
        variables: Names of environment variables that are handed on; whoever may use the engine sees their values.
        memory_gib: Limit of host memory; None for none.
        user: `uid:gid` inside; None for the worker's own, which can read the store.
    """

    kind: Literal["docker"]
    image: Word | None = None
    variables: VariableNames = ()
    memory_gib: PositiveGib | None = None
    user: Word | None = None

    @field_validator("readable")
    @classmethod
    def _none_to_read(cls, readable: tuple[str, ...]) -> tuple[str, ...]:
        if readable:
            raise ValueError("a container reads its image and what is mounted, nothing else of the host: leave it out")
        return readable


_SERVER = "llm_pipeline.adapters.docker.server"
ADAPTER = Adapter(config=DockerServer, open=OnCall(f"{_SERVER}:DockerControl"), probe=OnCall(f"{_SERVER}:probe"))
