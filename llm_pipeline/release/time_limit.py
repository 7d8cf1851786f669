"""What ends a stage that hangs: its own process first, and whoever waits for it where that cannot.

A stage that hangs (a driver, a network file system, a server that never answers) would hold its GPUs and its release
for ever. Its process ends itself, so that the limit holds in every runner and without whoever started it. One that is
stopped, or stuck where Python does not run, writes no more line: `runners/runner.py` ends it from outside.
`time_limit` says how long a stage may take.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from llm_pipeline.base.errors import StageOutOfTime
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import last_progress
from llm_pipeline.base.quantities import duration
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.loadtest.duration import session_seconds
from llm_pipeline.release.contract import TimeLimit
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.step import Work

GRACE_SECONDS = 120.0
"""How long a stage may take to end properly once its time is over."""

log = get_logger(__name__)


class OutOfTime(BaseException):
    """Raised wherever the stage is when its time is over, so that its `with` blocks end properly."""


@contextmanager
def ended_by(limit: TimeLimit, give_up: Callable[[StageOutOfTime], None]) -> Iterator[None]:
    """End the block when its time is over. Only for the main thread of a process.

    Args:
        limit: How long it may take; `base.progress` says when it last got on.
        give_up: Called in another thread if the block has still not ended `GRACE_SECONDS` later: native code that
            never returns to Python sees no signal. It must end the process.

    Raises:
        OutOfTime: The time is over.
    """
    ended, main, began = threading.Event(), threading.get_ident(), time.monotonic()

    def seconds_left() -> float:
        got_on = max(began, last_progress() or began)
        return min(got_on + limit.seconds, began + limit.longest_seconds) - time.monotonic()

    def error() -> StageOutOfTime:
        return out_of_time(limit, ran=time.monotonic() - began)

    def watch() -> None:
        next_line = began + limit.seconds
        while (left := seconds_left()) > 0:
            if ended.wait(left):
                return
            if time.monotonic() >= next_line and seconds_left() > 0:  # whoever watches from outside hears it
                log.info("it takes long, and goes on for it makes progress")
                next_line += limit.seconds
        signal.pthread_kill(main, signal.SIGALRM)
        if not ended.wait(GRACE_SECONDS):
            give_up(error())

    def time_is_over(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise OutOfTime(error())

    watchdog = threading.Thread(target=watch, name="time limit", daemon=True)
    before = signal.signal(signal.SIGALRM, time_is_over)
    watchdog.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        ended.set()
        watchdog.join(1.0)
        signal.signal(signal.SIGALRM, before)


def out_of_time(limit: TimeLimit, *, ran: float) -> StageOutOfTime:
    """The error of a stage whose time is over, so many seconds after its start."""
    what = f"{duration(limit.seconds)} without any progress"
    if ran >= limit.longest_seconds:
        what = f"{duration(limit.longest_seconds)}, the longest of any stage"
    hint = f"look at the last lines of its log; raise {limit.setting} if it was still at work"
    return StageOutOfTime(f"the stage was stopped after its time limit of {what}", hint=hint)


_HOUR = 3600.0
_STANDSTILL = 4 * _HOUR
"""A stage that makes no progress for so long hangs."""

_LOAD_TEST_FACTOR = 5.0
"""Extensions, more rounds of the comparison and waits between windows, by the shortest session."""


def time_limit(release: ResolvedRelease, stage: str) -> TimeLimit:
    """The time limit of one stage: by the policy, or more where its own settings need it."""
    most, own = _HOUR * release.policy.longest_stage_hours, _own_seconds(release, stage)
    return TimeLimit(
        seconds=max(min(_STANDSTILL, most), own),
        longest_seconds=max(most, own),
        setting=f"longest_stage_hours of policy {release.policy.name}",
    )


def _own_seconds(release: ResolvedRelease, stage: str) -> float:
    """What the stage's own settings let it take; 0 where they say nothing."""
    step = step_named(stage)
    match step.work if step else None:
        case Work.BAKE:
            # the server's start, the warm-up, and a pause for as long as the step may wait for a person
            canary, start = release.policy.canary, release.policy.staging.ready_timeout_seconds
            waits = canary.maximum_bake_seconds + canary.pause_deadline_seconds + canary.drain_seconds
            return _HOUR + start + waits
        case Work.SERVER_START:
            return _HOUR + release.policy.staging.ready_timeout_seconds
        case Work.LOAD:
            start = release.policy.staging.ready_timeout_seconds
            return start + _LOAD_TEST_FACTOR * session_seconds(release.workload, release.policy.load_test)
        case Work.BUILD:
            return _HOUR + max(60.0 * target.build.time_limit_minutes for target in release.targets)
        case _:
            return 0.0
