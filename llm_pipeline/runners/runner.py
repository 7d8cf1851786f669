"""The runner's port: where and how the process of a stage runs, and how it is found again.

    runner = Runners(deployment)
    job = runner.submit(request, placement)
    while runner.is_active(job):
        lines, offset = runner.read_log(job, offset)
    result = runner.outcome(job)

A job is small data that outlives whoever submitted it: any process with the same deployment goes on from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from llm_pipeline.base.records import Frozen
from llm_pipeline.release.contract import EnvironmentName, StageRequest, StageResult, TimeLimit

STAGE_VARIABLES = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Environment variables of every stage's process: its log has whole lines, and no bars."""


class Placement(Frozen):
    """Where a stage is to run.

    Attributes:
        environment: Name of one of the deployment's environments.
        container: The target's container, for an environment that names no image of its own.
    """

    environment: EnvironmentName
    container: str | None = None


class Job(Frozen):
    """One submitted stage.

    Attributes:
        runner: The kind of what runs it.
        environment: The deployment's environment that it runs in.
        name: The container's or the Kubernetes Job's name; empty for a process.
        directory: Holds `request.json`, `log.jsonl`, `process.json` and, at the end, `result.json`, as far as the
            runner keeps them on this host; nothing for a Kubernetes Job.
        request_digest: Digest of the request, so that the same request is not started twice.
        outcome_document: Document of the store that holds the outcome, where no file is shared; empty for a file.
        log_command: Command by which a person reads the stage's log, where it is no file of this host.
        time_limit: When the stage is stopped.
        start_seconds: How long it may wait before it starts, where that is not for us to say.
        release_id: The release that it works for.
        stage: Its stage.
        subject: What the stage works on.
    """

    runner: str = "process"
    environment: EnvironmentName
    name: str = ""
    directory: Path
    request_digest: str
    outcome_document: str = ""
    log_command: str = ""
    time_limit: TimeLimit = TimeLimit()
    start_seconds: float = 0.0
    release_id: str = ""
    stage: str = ""
    subject: str = ""

    @property
    def log_place(self) -> str:
        """Where a person finds the stage's log."""
        return self.log_command or str(self.log)

    @property
    def log(self) -> Path:
        """The stage's log, one JSON object a line."""
        return self.directory / "log.jsonl"

    @property
    def result(self) -> Path:
        """The stage's outcome; missing until it ends by itself."""
        return self.directory / "result.json"

    @property
    def record(self) -> Path:
        """The record of the stage's process."""
        return self.directory / "process.json"


class StageRunner(Protocol):
    """What every runner offers. None of it depends on which process submitted a job."""

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        """Start a stage; the same request while its job still runs gives that job.

        Raises:
            ConfigError: The deployment's environment cannot run it.
            Transient: What runs it cannot be reached now.
        """

    def is_active(self, job: Job) -> bool:
        """Whether the stage still runs, or waits to. One that waits in vain is cancelled; its outcome says why.

        Raises:
            Transient: What runs it cannot be reached now.
        """

    def read_log(self, job: Job, offset: int) -> tuple[list[str], int]:
        """Whole log lines from an offset on (0 at first), and the offset to go on from.

        The offset is the runner's own: bytes of a file, or a time. It is good for any process with the same job.
        """

    def outcome(self, job: Job) -> StageResult:
        """The result of a stage that has ended.

        Raises:
            StageCrashed: It ended without saying how.
            ConfigError: Its interpreter does not run this package.
            PipelineError: The error it reported, in its own family.
        """

    def cancel(self, job: Job) -> None:
        """Stop the stage and everything it started; one that has ended is fine."""
