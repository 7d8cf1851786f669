"""The controller's view of live traffic: single requests of the router's log, or counts of a metric source.

Both keep their position in the canary's record, which is written together with the conclusions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from llm_pipeline.canary.access_log import AccessLog, LogCursor, ObservedRequest
from llm_pipeline.canary.metrics import (
    ArmMetrics,
    ArmWindow,
    Thresholds,
    Window,
    fix_thresholds,
    thresholds_from_counts,
    window,
    window_from_counts,
)
from llm_pipeline.canary.record import CanaryRecord
from llm_pipeline.config.policy import CanaryPolicy

BASELINE_SECONDS = 120.0
"""Counts of stable over this long before the first step fix what "slow" means."""

HISTORY_SECONDS = 3600.0
"""Of single requests, so long a history of stable does, as far as it served already and the log goes back: it shows
how much one server wavers, too."""

_HISTORY_BYTES = 64 * 1024 * 1024


MOST_BYTES_A_LOOK = 4 * 1024 * 1024
"""Of the log that one look reads, about 6,000 lines; what is left is for the next one."""


@dataclass(frozen=True)
class Baseline:
    """Stable before the first step.

    Attributes:
        thresholds: The limits from then on; None while there are too few requests.
        requests: How many there are.
        record: The canary's record, with how far the source was read.
    """

    thresholds: Thresholds | None
    requests: int
    record: CanaryRecord


class LoggedTraffic:
    """Single requests, from the router's own log."""

    def __init__(self, access_log: AccessLog) -> None:
        self._log = access_log

    def end(self) -> LogCursor:
        """Where the log ends now."""
        return self._log.end()

    def baseline(self, record: CanaryRecord, policy: CanaryPolicy) -> Baseline:
        """Stable's requests before the first step; with little traffic a long log is not read again each time."""
        newest = self._of_stable(record)
        if fix_thresholds(newest, policy) is None:
            return Baseline(None, len(newest), record)
        history = self._of_stable(record, most_bytes=_HISTORY_BYTES)
        return Baseline(fix_thresholds(history, policy), len(history), record)

    def _of_stable(self, record: CanaryRecord, **bounds: int) -> list[ObservedRequest]:
        """Requests that stable itself answered or failed as production, without those that a standby answered."""
        since = time.time() - HISTORY_SECONDS
        if record.production_since is not None:
            since = max(since, record.production_since.timestamp())
        recent = self._log.recent(since, **bounds)
        mine = [request for request in recent if request.arm == record.stable and not request.on_trial]
        return [request for request in mine if request.server in (None, record.stable)]

    def step_begins(self, record: CanaryRecord) -> CanaryRecord:
        """The record, reading the log from here: after a clock was set back, older requests could seem to be newer."""
        return record.model_copy(update={"cursor": self._log.end(), "in_flight": {}})

    def look(self, record: CanaryRecord, thresholds: Thresholds) -> tuple[Window, CanaryRecord]:
        """Both arms since the last look, and the record behind it."""
        requests, cursor = self._log.read(record.cursor, MOST_BYTES_A_LOOK)
        seen = window(requests, record.candidate, thresholds, record.step_began_at, record.in_flight)
        read = record.model_copy(update={"cursor": cursor, "in_flight": seen.in_flight})
        return seen.model_copy(update={"behind": self._log.behind}), read


class CountedTraffic:
    """Counts of both arms, from a metric source."""

    def __init__(self, source: ArmMetrics) -> None:
        self._source = source

    def end(self) -> LogCursor:
        """The beginning: there is no log."""
        return LogCursor()

    def baseline(self, record: CanaryRecord, policy: CanaryPolicy) -> Baseline:
        """Stable's requests, counted from one moment on until there are enough."""
        since = record.metrics_cursor or self._source.begin(BASELINE_SECONDS)
        arms, _ = self._source.window(since)
        stable = arms.get(record.stable, ArmWindow()) if record.stable else ArmWindow()
        counted = record.model_copy(update={"metrics_cursor": since})
        return Baseline(thresholds_from_counts(stable, policy), stable.requests, counted)

    def step_begins(self, record: CanaryRecord) -> CanaryRecord:
        """The record, counting again: what was counted before belongs to other weights."""
        return record.model_copy(update={"metrics_cursor": None})

    def look(self, record: CanaryRecord, thresholds: Thresholds) -> tuple[Window, CanaryRecord]:
        """The same; raises Transient where the source is down, so nothing may be concluded."""
        arms, cursor = self._source.window(record.metrics_cursor or self._source.begin())
        seen = window_from_counts(arms, record.candidate, thresholds)
        return seen, record.model_copy(update={"metrics_cursor": cursor})


Traffic = LoggedTraffic | CountedTraffic
"""What the controller looks at."""
