"""A stage's process: it reads a request file and always writes an outcome.

The outcome is a file, or a document of the request's store where whoever started the process shares no file with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from llm_pipeline.base.durable import replace_durably
from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ConfigError, ExitCode, StageCancelled, StageOutOfTime
from llm_pipeline.base.logging import FAILURES, get_logger, write_json_lines
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import execute, publishes, record_failure
from llm_pipeline.release.time_limit import OutOfTime, ended_by
from llm_pipeline.store import open_store
from llm_pipeline.store.signed_documents import replace_document, write_signed

IN_STORE = "store:"
"""What stands before a job's name where its outcome goes to the store."""

log = get_logger(__name__)


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage of a request file and write its outcome.

    Raises:
        ConfigError: The request cannot be read or is for another stage.
        Transient: The outcome cannot be written now.
    """
    parser = ArgumentParser(prog="python -m llm_pipeline.stages", description="Run one stage, for a runner.")
    parser.add_argument("stage")
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", required=True, help="file for the outcome, or store:JOB for the request's store")
    parser.add_argument("--log", type=Path, help="file that takes all output of the stage")
    options = parser.parse_args(arguments)
    if options.log:  # all output, of this process and of what it starts
        descriptor = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    os.environ.setdefault("TQDM_DISABLE", "1")  # a task log has lines, not bars; read when a library imports tqdm
    write_json_lines()
    try:
        request = StageRequest.model_validate_json(options.request.read_bytes())
    except FileNotFoundError as problem:
        raise ConfigError("no such request file", where=str(options.request)) from problem
    except ValidationError as problem:
        raise ConfigError(f"not a stage request: {problem}", where=str(options.request)) from problem
    if request.stage != options.stage:
        raise ConfigError(f"the request is for {request.stage!r}, not {options.stage!r}", where=str(options.request))
    signal.signal(signal.SIGTERM, _cancel)
    try:
        with ended_by(request.time_limit, partial(_give_up, request, options.result)):
            outcome = execute(request)
    except _Cancelled:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        log.warning("stopped on request")
        stopped = StageCancelled("the stage was asked to stop", hint="run it again: finished work is kept")
        outcome = StageFailure.of(request, stopped)
    except OutOfTime as over:
        error = over.args[0]
        get_logger(FAILURES).error("%s", error)
        outcome = StageFailure.of(request, error)
        record_failure(request.store, outcome)
    _write(request, options.result, outcome)
    return ExitCode.GO if isinstance(outcome, StageResult) else outcome.error.exit_code


def job_outcome_name(release_id: str, job_name: str) -> str:
    """Document with the outcome of a job that shares no file with its runner; it goes with its release."""
    return f"releases/{release_id}/jobs/{job_name}.json"


def _give_up(request: StageRequest, result: str, error: StageOutOfTime) -> None:
    """Called in another thread as the last resort, if the main thread does not return from native code."""
    try:
        log.error("the stage did not stop in time: killing its process")
        _write(request, result, StageFailure.of(request, error))
    finally:
        import psutil  # here: hardly any stage comes to this

        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(ExitCode.INFRASTRUCTURE)


class _Cancelled(BaseException):
    """Raised by SIGTERM wherever the stage is, so that its `with` blocks end properly."""


def _cancel(_signal: int, _frame: FrameType | None) -> None:
    raise _Cancelled


def _write(request: StageRequest, result: str, outcome: StageResult | StageFailure) -> None:
    if result.startswith(IN_STORE):
        document = job_outcome_name(request.release_id, result.removeprefix(IN_STORE))
        signs = isinstance(outcome, StageResult) and publishes(request.stage)
        write = write_signed if signs else replace_document
        write(open_store(request.store), document, outcome.model_dump(mode="json"))
        return
    replace_durably(Path(result), outcome.model_dump_json(indent=1).encode())
