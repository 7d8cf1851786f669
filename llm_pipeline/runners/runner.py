"""Runners: where and how the process of a stage runs, how it is found again, and the watch that ends one that hangs.

    runner = Runners(deployment)
    job = runner.submit(request, placement)
    while runner.is_active(job):
        lines, offset = runner.read_log(job, offset)
    result = runner.outcome(job)

A job is small data that outlives whoever submitted it: any process with the same deployment goes on from it. Where a
runner shares files of this host with the stage, `<work_root>/jobs/<release>/<stage>.<subject>/<number>/` holds one
attempt: its request, its log and, when it ended by itself, its outcome. Whoever starts an attempt holds the lock of
the directory above.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.directory_listing import list_directory
from llm_pipeline.base.errors import ConfigError, PipelineError, StageCrashed
from llm_pipeline.base.file_lock import flocked
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.files import how_to_make_an_interpreter
from llm_pipeline.release import time_limit
from llm_pipeline.release.contract import (
    OUTCOME,
    EnvironmentName,
    StageFailure,
    StageRequest,
    StageResult,
    TimeLimit,
    result_of,
)
from llm_pipeline.release.execute import record_failure

log = get_logger(__name__)

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
        name: Its name, and that of its container or Kubernetes Job.
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
    def request(self) -> Path:
        """File that the stage reads its request from."""
        return self.directory / "request.json"

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


@contextlib.contextmanager
def locked_jobs(work_root: Path, request: StageRequest) -> Iterator[Path]:
    """The directory of all attempts at a stage's subject, locked against other starts."""
    base = work_root / "jobs" / request.release_id / f"{request.stage}.{request.subject}".rstrip(".")
    base.mkdir(parents=True, exist_ok=True)
    with flocked(base / "lock"):
        yield base


def latest_number(base: Path) -> int:
    """Number of the newest attempt; 0 when there is none."""
    return max((int(entry.name) for entry in list_directory(base) if entry.name.isdecimal()), default=0)


def read_lines(log: Path, offset: int) -> tuple[list[str], int]:
    """Whole lines of a log file from a byte offset on, and the offset to go on from."""
    try:
        with log.open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace").split("\n")[:-1], offset + len(whole)


def read_outcome(job: Job) -> StageResult | None:
    """The result in a job's directory; None when the stage has left none.

    Raises:
        PipelineError: The error that the stage reported, in its own family.
    """
    try:
        outcome = OUTCOME.validate_json(job.result.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return result_of(outcome)


def stage_command(python: str, stage: str, job: Job) -> list[str]:
    """What runs a stage with a job's files.

    Without `-P`, a directory that is named as a library (`triton/`) beside whoever starts it would be imported.
    """
    files = ["--request", str(job.request), "--result", str(job.result)]
    return [python, "-P", "-m", "llm_pipeline.stages", stage, *files]


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
        log.error("the stage hangs, and does not end itself: stopping it", log=self._job.log_place)
        try:
            runner.cancel(self._job)
        except PipelineError as problem:
            raise type(error)(f"{error.message}, but it may run on: {problem}", hint=error.hint) from problem
        raise error
