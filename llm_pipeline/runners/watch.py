"""Ends a stage that hangs and does not end itself: it is stopped, or stuck in native code that Python waits for.

    watch = Watch(job)
    while runner.is_active(job):
        lines, offset = runner.read_log(job, offset)
        watch.look(runner, lines)

A stage that lives writes a line at least as often as its time limit says, or ends itself: see
`release/time_limit.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.release import time_limit
from llm_pipeline.runners.runner import Job, StageRunner

log = get_logger(__name__)


class Watch:
    """Follows the log of one job, from now on: nobody who begins to watch knows how long it was silent before.

    Args:
        job: The job, as its runner gave it.
        started: Whether its log has been read from already, so that it needs no more time to start.
    """

    def __init__(self, job: Job, *, started: bool = False) -> None:
        self._job = job
        self._began = self._heard = time.monotonic()
        self._started = started

    def look(self, runner: StageRunner, lines: Sequence[str]) -> None:
        """Take what the job's log has gained.

        Raises:
            StageOutOfTime: It was silent for longer than its limit allows, and was stopped.
        """
        limit, now = self._job.time_limit, time.monotonic()
        if lines:
            self._heard, self._started = now, True
        grace = 2 * time_limit.GRACE_SECONDS + (0.0 if self._started else self._job.start_seconds)
        if now - self._heard <= limit.seconds + grace and now - self._began <= limit.longest_seconds + grace:
            return
        error = time_limit.out_of_time(limit, ran=now - self._began, silent=None)
        where = self._job.name or str(self._job.directory)
        log.error("the stage hangs, and does not end itself: stopping it", job=where)
        try:
            runner.cancel(self._job)
        except PipelineError as problem:
            raise type(error)(f"{error.message}, but it may run on: {problem}", hint=error.hint) from problem
        raise error
