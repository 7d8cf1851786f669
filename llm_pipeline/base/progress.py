"""How far long work is, in the log: a line now and then, with the time that is left; and when this process last got on.

A stage's time limit asks `last_progress`: what counts steps here, and what reads or writes the bytes of files, says
`made_progress`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from llm_pipeline.base.logging import PROGRESS, get_logger

log = get_logger(PROGRESS)

_SECONDS_BETWEEN_LINES = 10.0


class _Last:
    """When this process last made progress: seconds of the monotonic clock."""

    at: float | None = None


def made_progress() -> None:
    """Say that the work of this process got on just now."""
    _Last.at = time.monotonic()


def last_progress() -> float | None:
    """When it last got on, by the monotonic clock; None if it never said so."""
    return _Last.at


class Progress:
    """Counts steps and logs them at most every ten seconds, and once all are done.

    Args:
        what: What is done, as the log says it.
        total: How many steps it has.
        unit: What a step is, in the plural.
    """

    def __init__(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._done = 0
        self._started = self._reported = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Count steps that were finished just now."""
        made_progress()
        self._done += steps
        now = time.monotonic()
        if now - self._reported < _SECONDS_BETWEEN_LINES and self._done != self._total:
            return
        self._reported = now
        per_second = self._done / max(now - self._started, 1e-3)
        left = max(0, self._total - self._done)
        log.info(
            f"{self._what}: {self._done:,} of {self._total:,} {self._unit}",
            per_second=float(f"{per_second:.3g}"),
            seconds_left_at_most=round(left / per_second),
        )


@dataclass
class PhaseClock:
    """Seconds by phase, in the order in which they ran first."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase, and say so in the log once it is over."""
        started = time.monotonic()
        yield
        spent = round(time.monotonic() - started, 3)
        self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 3)
        log.info("phase done", phase=name, seconds=spent)
