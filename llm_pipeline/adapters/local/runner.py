"""The process runner: a stage as a detached process on this machine, found again after a crash of its starter.

A stage in a container (`container.py`) is submitted in the same way, and its job's directory has the same files.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from llm_pipeline.adapters.local.adapter import Interpreter
from llm_pipeline.base import detached
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.files import how_to_make_an_interpreter
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.runners.runner import (
    Job,
    Placement,
    latest_number,
    locked_jobs,
    read_lines,
    read_outcome,
    stage_command,
)
from llm_pipeline.runners.shared import crash, job_base_name
from llm_pipeline.runners.stage_environment import stage_environment

_BATCH_NICENESS = 10
_START_SECONDS = 60


class ProcessRunner:
    """Starts stages in the interpreters that the deployment names."""

    def __init__(self, deployment: Deployment) -> None:
        self._work_root = Path(deployment.work_root)
        self._deployment = deployment

    @staticmethod
    def probe(environment: Interpreter) -> str:
        """What `doctor` says of an environment that works.

        Raises:
            ConfigError: The interpreter does not run this package.
        """
        python = environment.python
        command = [python, "-P", "-m", "llm_pipeline", "--version"]
        if not os.access(python, os.X_OK):
            raise ConfigError(f"there is no interpreter at {python}", hint=how_to_make_an_interpreter())
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_START_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", "") or "").strip().splitlines()
            problem = f"{python} does not run this package: {said[-1] if said else error}"
            raise ConfigError(problem, hint=how_to_make_an_interpreter()) from error
        return f"{python}, package {answer.stdout.strip()}"

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        """Start a stage; the same request while its job still runs gives that job.

        Raises:
            ConfigError: The environment has no interpreter or image, or what runs it refuses.
            Transient: A container engine or registry cannot be reached.
        """
        text = request.model_dump_json(indent=1)
        name = job_base_name(request, str(self._work_root))
        with locked_jobs(self._work_root, request) as base:
            number = latest_number(base)
            job = Job(
                runner=self._deployment.environments[placement.environment].runner,
                environment=placement.environment,
                name=f"{name}-{number}",
                directory=base / str(number),
                request_digest=sha256_bytes(text.encode()),
            )
            if number:
                if self.is_active(job) and job.request.read_text() == text:
                    return job
                self.clear(job)  # an older configuration of the stage is superseded; a crashed one was looked at
            number += 1
            job = job.model_copy(update={"name": f"{name}-{number}", "directory": base / str(number)})
            job.directory.mkdir()
            job.request.write_text(text)
            self.start(request, placement, job)
            return job

    def start(self, request: StageRequest, placement: Placement, job: Job) -> None:
        """Start the stage of a job whose directory has its request."""
        python = self._deployment.interpreter(placement.environment)
        if not os.access(python, os.X_OK):
            problem = f"environment {placement.environment!r} has no interpreter at {python}"
            raise ConfigError(problem, hint=how_to_make_an_interpreter())
        process = detached.start(
            f"stage {request.stage} {request.subject}".strip(),
            stage_command(python, request.stage, job),
            job.record,
            log=job.log,
            environment=stage_environment(request, self._deployment),
        )
        if placement.environment == "model":
            _yield_to_servers(process.pid)

    def is_active(self, job: Job) -> bool:
        """Whether the stage's process still runs."""
        process = detached.load(job.record)
        return process is not None and process.alive

    def read_log(self, job: Job, offset: int) -> tuple[list[str], int]:
        """Whole log lines from a byte offset on, and the offset to go on from."""
        return read_lines(job.log, offset)

    def outcome(self, job: Job) -> StageResult:
        """The result of a stage that has ended.

        Raises:
            StageCrashed: It ended without saying how.
            ConfigError: The interpreter does not run this package.
            PipelineError: The error it reported, in its own family.
        """
        if result := read_outcome(job):
            return result
        raise crash(
            "its process was killed, or out of memory",
            read_lines(job.log, 0)[0],
            where=str(job.directory),
            install=how_to_make_an_interpreter(),
        )

    def cancel(self, job: Job) -> None:
        """Stop the stage and everything it started in its process group."""
        if process := detached.load(job.record):
            detached.stop(process, grace_seconds=20.0)

    def clear(self, job: Job) -> None:
        """Stop an attempt that another follows, and remove what it left outside of its directory."""
        self.cancel(job)


def _yield_to_servers(pid: int) -> None:
    """Let production on the same machine go first: stages that compute never start servers, which would inherit it.

    Where Linux shares a CPU between sessions first (`sched_autogroup`), a niceness counts among the processes of one
    session only, and the session has one of its own.
    """
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, _BATCH_NICENESS)
    with contextlib.suppress(OSError):  # no such file where sessions do not count
        Path(f"/proc/{pid}/autogroup").write_text(str(_BATCH_NICENESS), encoding="ascii")
