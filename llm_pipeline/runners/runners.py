"""All runners of a deployment behind one, and the watch that ends a stage that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable

from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.errors import ConfigError, PipelineError, StageCrashed
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.files import how_to_make_an_interpreter
from llm_pipeline.release import time_limit
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import record_failure
from llm_pipeline.runners.runner import Job, Placement, StageRunner

log = get_logger(__name__)


class Runners:
    """A `StageRunner` that hands everything on to the runner that it belongs to."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._runners: dict[str, StageRunner] = {}

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        environment = self._deployment.environments.get(placement.environment)
        if environment is None:
            problem = f"deployment {self._deployment.name} has no environment {placement.environment!r}"
            raise ConfigError(problem, hint=how_to_make_an_interpreter())
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
            if job.stage:  # for the report: it could not say so itself, for it was killed, or never began
                names = {"release_id": job.release_id, "stage": job.stage, "subject": job.subject}
                record_failure(self._deployment.store, StageFailure(**names, error=error.to_document()))
            raise

    def cancel(self, job: Job) -> None:
        self._runner(job.runner).cancel(job)

    def _runner(self, name: str) -> StageRunner:
        if name not in self._runners:
            self._runners[name] = adapter("runners", name).open(self._deployment)
        return self._runners[name]


class Watch:
    """Follows a stage: relays its log, and ends one that hangs and does not end itself, stopped or in native code.

        watch = Watch(job, LogRelay(log).relay)
        while watch.look(runner):
            time.sleep(1)
        result = runner.outcome(job)

    A stage that lives writes a line at least as often as its time limit says, or ends itself (`release/time_limit.py`).
    Silence counts from now on: nobody who begins to watch knows how long it was silent before.

    Args:
        job: The job, as its runner gave it.
        relay: Takes each line of its log.
        offset: Where the log was left; one that was read from already needs no more time to start.

    Attributes:
        offset: Where the log is to be read from next.
        heard: Whether the last look found a new line.
    """

    def __init__(self, job: Job, relay: Callable[[str], object], offset: int = 0) -> None:
        self._job = job
        self._relay = relay
        self._began = self._heard_at = time.monotonic()
        self._started = offset > 0
        self.offset = offset
        self.heard = False

    def look(self, runner: StageRunner, *, ends: bool = True) -> bool:
        """Relay what the log has gained; returns whether the stage still runs.

        Args:
            runner: The job's.
            ends: Whether one that hangs is to be ended.

        Raises:
            StageOutOfTime: It was silent for longer than its limit allows, and was stopped.
        """
        active = runner.is_active(self._job)  # before reading: nothing written before the end is missed
        lines, self.offset = runner.read_log(self._job, self.offset)
        for line in lines:
            self._relay(line)
        self.heard = bool(lines)
        if self.heard:
            self._heard_at, self._started = time.monotonic(), True
        if active and ends:
            self._end_if_it_hangs(runner)
        return active

    def _end_if_it_hangs(self, runner: StageRunner) -> None:
        limit, now = self._job.time_limit, time.monotonic()
        grace = 2 * time_limit.GRACE_SECONDS + (0.0 if self._started else self._job.start_seconds)
        if now - self._heard_at <= limit.seconds + grace and now - self._began <= limit.longest_seconds + grace:
            return
        error = time_limit.out_of_time(limit, ran=now - self._began)
        where = self._job.name or str(self._job.directory)
        log.error("the stage hangs, and does not end itself: stopping it", job=where)
        try:
            runner.cancel(self._job)
        except PipelineError as problem:
            raise type(error)(f"{error.message}, but it may run on: {problem}", hint=error.hint) from problem
        raise error
