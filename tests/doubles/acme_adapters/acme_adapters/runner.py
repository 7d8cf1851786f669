# ruff: noqa: ARG002
"""Runs a stage at once, in the interpreter of a partition, and waits for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from llm_pipeline.base.adapters import Adapter
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import StageCrashed
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.environment import EnvironmentModel
from llm_pipeline.config.model import AbsolutePath, Word
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.runners.runner import Job, Placement, read_lines, read_outcome, stage_command
from llm_pipeline.runners.shared import environment_of


class AcmeBatch(EnvironmentModel):
    runner: Literal["acme_batch"]
    python: AbsolutePath
    partition: Word = "day"

    def interpreter_here(self) -> str:
        return self.python

    def problems(self) -> Iterator[str]:
        if self.partition == "closed":
            yield "partition closed takes no jobs"

    def warnings(self) -> Iterator[str]:
        if self.partition == "night":
            yield "partition night starts after dark"


class BatchRunner:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        environment = environment_of(self._deployment, placement.environment, AcmeBatch)
        text = request.model_dump_json()
        directory = Path(self._deployment.work_root) / "acme" / sha256_bytes(text.encode())
        directory.mkdir(parents=True)
        job = Job(
            runner="acme_batch", environment=placement.environment, directory=directory, request_digest=directory.name,
            log_command=f"acme log {environment.partition}/{directory.name[:8]}",
        )  # fmt: skip
        job.request.write_text(text)
        command = stage_command(environment.python, request.stage, job)
        with job.log.open("wb") as log:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ), check=False)
        return job

    def is_active(self, job: Job) -> bool:
        return False

    def read_log(self, job: Job, offset: int) -> tuple[list[str], int]:
        return read_lines(job.log, offset)

    def outcome(self, job: Job) -> StageResult:
        result = read_outcome(job)
        if result is None:
            raise StageCrashed("the job ended without a result", where=str(job.directory))
        return result

    def cancel(self, job: Job) -> None:
        """It has ended."""


RUNNER = Adapter(
    config=AcmeBatch, open=BatchRunner, probe=lambda environment: f"partition {environment.partition} takes jobs"
)
