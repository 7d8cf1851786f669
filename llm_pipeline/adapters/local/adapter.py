"""The settings of the runner `process`, what opens it, and its probe."""

from __future__ import annotations

from typing import ClassVar, Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.environment import EnvironmentModel
from llm_pipeline.config.model import HostPath
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


_RUNNER_CLASS = "llm_pipeline.adapters.local.runner:ProcessRunner"
RUNNER = Adapter(config=Interpreter, open=OnCall(_RUNNER_CLASS), probe=OnCall(f"{_RUNNER_CLASS}.probe"))


class LocalServer(ServerPorts, ServerModel):
    """A tritonserver of this host, on loopback ports: the one in `triton_home`."""

    is_process_here: ClassVar[bool] = True

    kind: Literal["local"] = "local"


SERVER = Adapter(config=LocalServer, open=OnCall("llm_pipeline.adapters.local.server:LocalControl"))
