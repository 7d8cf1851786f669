"""The entry point of a stage's process: request file in, result file out, whatever happens in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from llm_pipeline.errors import ConfigError, ExitCode, StageCancelled
from llm_pipeline.logging import get_logger, write_json_lines
from llm_pipeline.stages.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.stages.execute import execute

log = get_logger(__name__)


def run_stage_process(name: str, request_path: Path, result_path: Path) -> ExitCode:
    """Run the stage of a request file and write its outcome.

    Raises:
        ConfigError: The request cannot be read or is for another stage.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # a task log has lines, not bars; read when a library imports tqdm
    write_json_lines()
    request = _read_request(name, request_path)
    signal.signal(signal.SIGTERM, _cancel)
    try:
        outcome = execute(request)
    except _Cancelled:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cancelled = StageCancelled("the stage was asked to stop", hint="run it again: finished work is kept")
        log.warning("stopped on request")
        outcome = StageFailure(
            release_id=request.release_id, stage=name, subject=request.subject, error=cancelled.to_document()
        )
    _write(result_path, outcome)
    return ExitCode.GO if isinstance(outcome, StageResult) else outcome.error.exit_code


class _Cancelled(BaseException):
    """Raised by SIGTERM wherever the stage is, so that its `with` blocks end properly."""


def _cancel(_signal: int, _frame: FrameType | None) -> None:
    raise _Cancelled


def _read_request(name: str, path: Path) -> StageRequest:
    try:
        request = StageRequest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError("no such request file", where=str(path)) from error
    except ValidationError as error:
        raise ConfigError(f"not a stage request: {error}", where=str(path)) from error
    if request.stage != name:
        raise ConfigError(f"the request is for stage {request.stage!r}, not {name!r}", where=str(path))
    return request


def _write(path: Path, outcome: StageResult | StageFailure) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(outcome.model_dump_json(indent=1))
    temporary.replace(path)
