"""Ports of a Triton server on this host."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llm_pipeline.config.model import AbsolutePath, ConfigModel, Gpu, Port


class ServerPorts(ConfigModel):
    """Loopback ports of one Triton server, and its GPUs.

    Attributes:
        gpus: Indices of the host's GPUs that the server sees; None for all that its worker does. Servers that run at
            the same time, such as staging and the slot in production, need GPUs of their own.
        readable: Files and directories that the server may read beside its repository, its software and the system's
            directories, for software that lies elsewhere. The kernel denies it all others, where it has Landlock.
    """

    http: Port
    grpc: Port
    metrics: Port
    gpus: Annotated[tuple[Gpu, ...], Field(max_length=1024)] | None = None
    readable: Annotated[tuple[AbsolutePath, ...], Field(max_length=64)] = ()

    @property
    def ports(self) -> ServerPorts:
        """These fields alone, without those that a kind of server adds."""
        return ServerPorts(**{name: getattr(self, name) for name in ServerPorts.model_fields})

    def by_name(self) -> dict[str, int]:
        """The ports by protocol."""
        return {"http": self.http, "grpc": self.grpc, "metrics": self.metrics}
