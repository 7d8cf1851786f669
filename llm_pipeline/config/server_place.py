"""Where servers run: their ports on this host, what serves in a production slot, and the kinds of staging servers.

A staging server's kind decides; `openai` is one that runs already, and ports without a kind are a server of this host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, WrapValidator, field_validator

from llm_pipeline.config.endpoint import Endpoint, OpenAiEndpoint
from llm_pipeline.config.installed import AdapterModel, OfKind
from llm_pipeline.config.model import AbsolutePath, ConfigModel, GpuIndices, Port


class ServerPorts(ConfigModel):
    """Loopback ports of one Triton server, and its GPUs.

    Attributes:
        openai: Port of OpenAI's API, spoken by a small process beside the server; the pipeline asks by it, too.
        gpus: Indices of the host's GPUs that the server sees; None for all that its worker does. Servers that run at
            the same time, such as staging and the slot in production, need GPUs of their own.
        readable: Files and directories that the server may read beside its repository, its software and the system's
            directories, for software that lies elsewhere. The kernel denies it all others, where it has Landlock.
    """

    http: Port
    grpc: Port
    metrics: Port
    openai: Port
    gpus: GpuIndices | None = None
    readable: Annotated[tuple[AbsolutePath, ...], Field(max_length=64)] = ()

    @property
    def ports(self) -> ServerPorts:
        """These fields alone, without those that a kind of server adds."""
        return ServerPorts(**{name: getattr(self, name) for name in ServerPorts.model_fields})

    def by_name(self) -> dict[str, int]:
        """The ports by protocol."""
        return {"http": self.http, "grpc": self.grpc, "metrics": self.metrics, "openai": self.openai}


class OpenAiSlot(ConfigModel):
    """A server with OpenAI's API (`vllm serve`) that somebody else starts with a release's checkpoint, and stops.

    Attributes:
        endpoint: Where it answers, as router and workers reach it, its model, and the variable with its API key. Users'
            requests keep their own key, so both slots must take the same keys.
    """

    kind: Literal["openai"]
    endpoint: OpenAiEndpoint

    @field_validator("endpoint")
    @classmethod
    def _has_no_path(cls, endpoint: Endpoint) -> Endpoint:
        if urlsplit(endpoint.url).path.strip("/"):
            raise ValueError("url must be that of the server, without a path such as /openai")
        return endpoint

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.endpoint.url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _by_kind(value: Any, _: Any, info: ValidationInfo) -> Any:
    """Of a union's members each would be tried, and the errors of all be told."""
    if isinstance(value, OpenAiSlot) or (isinstance(value, Mapping) and "kind" in value):
        return OpenAiSlot.model_validate(value, context=info.context)
    return ServerPorts.model_validate(value, context=info.context)


SlotServer = Annotated[ServerPorts | OpenAiSlot, WrapValidator(_by_kind)]
"""By its ports alone a Triton of this host."""


class ServerModel(AdapterModel):
    """What every kind of staging server is; each names its `kind`.

    One on ports of this host derives from `ServerPorts` besides; any other has a field `endpoint`, or its adapter says
    where it answers. `problems` and `warnings` are asked with a target.

    Attributes:
        is_process_here: It is started on this host, with the deployment's `triton_home` and the interpreter of the
            place; where `start_server` does that, the load test measures the server's memory.
        fetches_release: It fetches the artifacts of a release from the store itself, so it is told their names
            (`Candidate.release`) and given no copies.
    """

    is_process_here: ClassVar[bool] = False
    fetches_release: ClassVar[bool] = False

    if TYPE_CHECKING:
        kind: str


def _local_by_default(value: Any) -> Any:
    given = dict(value) if type(value) is ServerPorts else value
    return {"kind": "local", **given} if isinstance(given, dict) else given


ServerPlace = Annotated[ServerModel, OfKind("server_controls"), BeforeValidator(_local_by_default), SerializeAsAny()]
"""Settings of an adapter: ours, or one of an installed package; ports alone are a server of this host."""
