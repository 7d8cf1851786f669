"""The settings of the runner `process`, what opens it, and its probe."""

from __future__ import annotations

from typing import Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.environment import EnvironmentModel
from llm_pipeline.config.model import HostPath


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


_RUNNER = "llm_pipeline.adapters.local.runner:ProcessRunner"
ADAPTER = Adapter(config=Interpreter, open=OnCall(_RUNNER), probe=OnCall(f"{_RUNNER}.probe"))
