"""All runners of a deployment behind one: each job goes to the runner of its environment."""

from __future__ import annotations

from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.errors import ConfigError, PipelineError, StageCrashed
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.files import how_to_make_an_interpreter
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import record_failure
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
                hint=how_to_make_an_interpreter(),
            )
        job = self._runner(environment.runner).submit(request, placement)
        of = {"release_id": request.release_id, "stage": request.stage, "subject": request.subject}
        return job.model_copy(update={"time_limit": request.time_limit, **of})

    def is_active(self, job: Job) -> bool:
        return self._runner(job.runner).is_active(job)

    def read_log(self, job: Job, offset: int) -> tuple[list[str], int]:
        return self._runner(job.runner).read_log(job, offset)

    def outcome(self, job: Job) -> StageResult:
        try:
            return self._runner(job.runner).outcome(job)
        except (StageCrashed, ConfigError) as error:
            self._keep(job, error)
            raise

    def cancel(self, job: Job) -> None:
        self._runner(job.runner).cancel(job)

    def _keep(self, job: Job, error: PipelineError) -> None:
        """Keep for the report how a stage ended that could not do so itself: it was killed, or never began."""
        if job.stage:
            document = error.to_document()
            failure = StageFailure(release_id=job.release_id, stage=job.stage, subject=job.subject, error=document)
            record_failure(self._deployment.store, failure)

    def _runner(self, name: str) -> StageRunner:
        if name not in self._runners:
            self._runners[name] = adapter("runners", name).open(self._deployment)
        return self._runners[name]
