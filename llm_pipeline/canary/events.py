"""What happened to a canary, in order: one line for every change, pause, verdict, shift and rollback, with who did it.

The events are part of the canary's record, so each is written together with the change that it tells of: a controller
killed anywhere leaves neither a change without its event nor an event without its change. They survive the attempt
that they belong to, and the oldest go when there are too many. `record.read_events` is for readers.
"""

from __future__ import annotations

from enum import StrEnum

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Verdict

MOST_EVENTS = 200
"""A record keeps this many of the newest events."""

LONGEST_SUMMARY = 500


class EventKind(StrEnum):
    """What an event is about."""

    STARTED = "started"
    SHIFTED = "shifted"
    PASSED = "step passed"
    PAUSED = "paused"
    PAUSED_BY_PERSON = "paused by a person"
    RESUMED = "resumed"
    APPROVAL_ASKED = "approval asked"
    APPROVED = "approved"
    DENIED = "denied"
    VERDICT = "verdict"
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"
    REVIVED = "router revived"
    STOOD_IN = "stood in"


class CanaryEvent(Frozen):
    """One thing that happened to a canary.

    Attributes:
        number: Counts the canary's events from 1, over all attempts: a reader remembers the last one it has seen.
        at: Seconds since 1970, by the clock of whoever wrote it.
        kind: What it is about.
        percent: The candidate's share of the traffic then, in percent.
        summary: What happened, in one sentence.
        by: Who did it: a controller, the guard, or a person.
        verdict: What was decided; None where nothing was.
    """

    number: int
    at: float
    kind: EventKind
    percent: float
    summary: str
    by: str
    verdict: Verdict | None = None
