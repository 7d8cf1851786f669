"""Job directories: what a stage shares with its runner through files of this host.

`<work_root>/jobs/<release>/<stage>.<subject>/<number>/` holds one attempt: its request, its log and, when it ended
by itself, its outcome. Whoever starts an attempt holds the lock of the directory above.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from llm_pipeline.base.directory_listing import list_directory
from llm_pipeline.base.file_lock import flocked
from llm_pipeline.release.contract import OUTCOME, StageRequest, StageResult, result_of
from llm_pipeline.runners.runner import Job


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


def request_path(job: Job) -> Path:
    """File that the stage reads its request from."""
    return job.directory / "request.json"


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
