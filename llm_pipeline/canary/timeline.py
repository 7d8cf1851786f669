"""The canary's timeline as an artifact: `timeline.jsonl` (both arms, second by second) and `canary.json`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from llm_pipeline.canary.observations import AccessLog, TimelinePoint, timeline
from llm_pipeline.canary.record import CanaryRecord, PastAttempt
from llm_pipeline.canary.router import SlotName
from llm_pipeline.errors import IntegrityError

TIMELINE_FILE = "timeline.jsonl"
SUMMARY_FILE = "canary.json"


class TimelineMark(BaseModel):
    """A moment worth a line in the plot; `at_seconds` counts from the canary's start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_seconds: float
    label: str


class CanarySummary(BaseModel):
    """What the report says of a canary.

    Attributes:
        began_at: Seconds since 1970.
        stable: The slot that served before; None for a first deployment.
        marks: Steps, pauses, promotion, rollback.
        history: How earlier runs' canaries of this release ended here, oldest first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    release_id: str
    target: str
    phase: str
    began_at: float
    stable: SlotName | None
    candidate: SlotName
    marks: tuple[TimelineMark, ...]
    history: tuple[PastAttempt, ...] = ()


def write_timeline(directory: Path, record: CanaryRecord, access_log: AccessLog) -> list[TimelinePoint]:
    """Write the canary so far to `directory`, from the access log since its beginning."""
    requests, _ = access_log.read(record.began_cursor)
    shares = [(mark.at, mark.share) for mark in record.marks]
    points = timeline(requests, shares, candidate=record.candidate, began_at=record.began_at)
    summary = CanarySummary(
        release_id=record.release_id,
        target=record.target,
        phase=record.phase.value,
        began_at=record.began_at,
        stable=record.stable,
        candidate=record.candidate,
        marks=tuple(TimelineMark(at_seconds=mark.at - record.began_at, label=mark.label) for mark in record.marks),
        history=record.history,
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SUMMARY_FILE).write_text(summary.model_dump_json(indent=1) + "\n")
    with (directory / TIMELINE_FILE).open("w") as stream:
        stream.writelines(point.model_dump_json() + "\n" for point in points)
    return points


def read_timeline(directory: Path) -> tuple[CanarySummary, list[TimelinePoint]]:
    """Read what `write_timeline` wrote.

    Raises:
        IntegrityError: A file is missing or damaged.
    """
    try:
        summary = CanarySummary.model_validate_json((directory / SUMMARY_FILE).read_text())
        with (directory / TIMELINE_FILE).open() as stream:
            return summary, [TimelinePoint.model_validate_json(line) for line in stream]
    except (OSError, ValidationError) as error:
        raise IntegrityError(f"not a canary timeline: {error}", where=str(directory)) from error
