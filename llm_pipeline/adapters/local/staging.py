"""The settings of a staging server of kind `local`, and what opens it."""

from __future__ import annotations

from typing import ClassVar, Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.server_place import ServerModel
from llm_pipeline.config.server_ports import ServerPorts


class LocalServer(ServerPorts, ServerModel):
    """A tritonserver of this host, on loopback ports: the one in `triton_home`."""

    is_process_here: ClassVar[bool] = True

    kind: Literal["local"] = "local"


ADAPTER = Adapter(config=LocalServer, open=OnCall("llm_pipeline.adapters.local.server:LocalControl"))
