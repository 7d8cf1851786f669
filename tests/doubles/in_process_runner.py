"""A runner that runs each stage in this process: the real store, records and requests, and stages that do no work."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from llm_pipeline.release import execute
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult, result_of
from llm_pipeline.runners.runner import Job, Placement

SCRIPTED = Path(__file__).parents[1] / "airflow" / "stages_for_tests" / "run_stage.py"


def scripted_stages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scripted_stages", SCRIPTED)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class InProcess:
    """Stands for `Runners`.

    Attributes:
        ran: Stage and subject of everything that was started.
        before: Called with each request before its stage runs.
    """

    def __init__(self, before: Callable[[StageRequest], None] = lambda _request: None) -> None:
        self.ran: list[tuple[str, str]] = []
        self.before = before
        self._outcomes: dict[str, StageResult | StageFailure] = {}

    def __call__(self, _deployment: Any) -> InProcess:
        return self

    def submit(self, request: StageRequest, placement: Placement) -> Job:
        self.ran.append((request.stage, request.subject))
        self.before(request)
        digest = uuid.uuid4().hex
        self._outcomes[digest] = execute.execute(request)
        return Job(environment=placement.environment, directory=Path(request.work_root), request_digest=digest)

    def is_active(self, _job: Job) -> bool:
        return False

    def read_log(self, _job: Job, offset: int) -> tuple[list[str], int]:
        return [], offset

    def outcome(self, job: Job) -> StageResult:
        return result_of(self._outcomes[job.request_digest])

    def cancel(self, _job: Job) -> None:
        raise AssertionError("a stage of this process never outlives its call")
