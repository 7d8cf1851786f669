"""The settings of the runner `process`, what opens it, and its probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from llm_pipeline.base.adapters import Adapter
from llm_pipeline.config.environment import EnvironmentModel
from llm_pipeline.config.model import HostPath

if TYPE_CHECKING:
    from llm_pipeline.adapters.local.runner import ProcessRunner
    from llm_pipeline.config.deployment import Deployment


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


def _open(deployment: Deployment) -> ProcessRunner:
    from llm_pipeline.adapters.local.runner import ProcessRunner

    return ProcessRunner(deployment)


def _probe(environment: Interpreter) -> str:
    from llm_pipeline.adapters.local.runner import ProcessRunner

    return ProcessRunner.probe(environment)


ADAPTER = Adapter(config=Interpreter, open=_open, probe=_probe)
