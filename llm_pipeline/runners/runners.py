"""All runners of a deployment behind one: each job goes to the runner of its environment."""

from __future__ import annotations

from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import INSTALL_INTERPRETER, Deployment
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.runners.runner import Job, Placement, StageRunner


class Runners:
    """A `StageRunner` that hands everything on to the runner that it belongs to."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._runners: dict[str, StageRunner] = {}

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        environment = self._deployment.environments.get(placement.environment)
        if environment is None:
            raise ConfigError(
                f"deployment {self._deployment.name} has no environment {placement.environment!r}",
                hint=INSTALL_INTERPRETER,
            )
        job = self._runner(environment.runner).submit(request, placement)
        return job.model_copy(update={"time_limit": request.time_limit})

    def is_active(self, job: Job) -> bool:
        return self._runner(job.runner).is_active(job)

    def read_log(self, job: Job, offset: int) -> tuple[list[str], int]:
        return self._runner(job.runner).read_log(job, offset)

    def outcome(self, job: Job) -> StageResult:
        return self._runner(job.runner).outcome(job)

    def cancel(self, job: Job) -> None:
        self._runner(job.runner).cancel(job)

    def _runner(self, name: str) -> StageRunner:
        if name not in self._runners:
            self._runners[name] = adapter("runners", name).open(self._deployment)
        return self._runners[name]
