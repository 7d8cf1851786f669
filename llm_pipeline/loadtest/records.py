"""What a load test leaves behind: one record a request, timed from its scheduled arrival."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from llm_pipeline.errors import IntegrityError

REQUESTS_FILE = "requests.jsonl"


class RequestRecord(BaseModel):
    """One request of the measured window.

    All latencies count from the scheduled arrival, not from the send: a request that had to wait because the
    server (or we) stalled has waited for its user too. Timing from the send hides that ("coordinated omission",
    G. Tene; wrk2).

    Attributes:
        number: Its place in the schedule.
        arrives_at: Scheduled arrival, seconds from the start of the window.
        lag_seconds: How late we sent it.
        first_token_seconds: From the scheduled arrival to the first text; None without one.
        total_seconds: From the scheduled arrival to the last byte.
        longest_gap_seconds: Longest silence between two chunks.
        prompt_characters: Length of the prompt.
        asked_tokens: `max_tokens`.
        output_tokens: As counted by the server.
        status: HTTP status; 0 when there was no answer.
        error: Why it failed; empty when it did not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    arrives_at: float
    lag_seconds: float
    first_token_seconds: float | None
    total_seconds: float
    longest_gap_seconds: float = 0.0
    prompt_characters: int = 0
    asked_tokens: int
    output_tokens: int
    status: int
    error: str = ""


def write_records(directory: Path, records: Iterable[RequestRecord]) -> None:
    """Write the records of one load test to `directory`."""
    with (directory / REQUESTS_FILE).open("w", encoding="utf-8") as stream:
        stream.writelines(record.model_dump_json() + "\n" for record in records)


def read_records(directory: Path) -> list[RequestRecord]:
    """Read the records of one load test.

    Raises:
        IntegrityError: The file is missing or a line is not a record.
    """
    path = directory / REQUESTS_FILE
    try:
        with path.open(encoding="utf-8") as stream:
            return [RequestRecord.model_validate_json(line) for line in stream]
    except (OSError, ValidationError) as error:
        raise IntegrityError(f"no readable load test: {error}", where=str(path)) from error
