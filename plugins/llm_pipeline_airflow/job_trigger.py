"""Waits in Airflow's triggerer for the end of a stage's container or pod, so that its task holds no worker meanwhile.

The trigger only looks and relays the log. The task that it wakes finds the job again, prints the rest of its log, and
judges its outcome: a trigger that sees nothing, or that is told nonsense, can end no stage and make no result.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, TypeVar

from airflow.sdk.configuration import conf
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent

from llm_pipeline.base.errors import PipelineError, StageOutOfTime
from llm_pipeline.base.logging import LogRelay
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.deployment import Deployment, Workers
from llm_pipeline.runners.runner import Job, Runners, Watch
from llm_pipeline_airflow.connections import fetch_secrets
from llm_pipeline_airflow.faults import contained, get_logger

log = get_logger(__name__)

T = TypeVar("T")

SHORTEST_LOOK_SECONDS = 5.0
"""Not less: Airflow 3.3 takes a task whose trigger fires before its scheduler saw the deferral for a failed one."""
_LONGEST_LOOK_SECONDS = 30.0
_LATE_AT_MOST = 0.01
"""How late the end of a stage may be seen, as a fraction of the time that it took."""
_PATIENCE_SECONDS = 300.0
_PATIENCE_AT_FIRST_SECONDS = 30.0
_LOCAL_EXECUTOR = "LocalExecutor"
_THREADS = ThreadPoolExecutor(8, thread_name_prefix="stage-jobs")
"""Own ones: an engine that does not answer must not hold up triggers of others."""


class WatchedJob(Frozen):
    """What a triggerer needs to find a job: it may have no file of the release. It holds no secret.

    Attributes:
        deployment: The deployment, as far as its runner needs it.
        job: The job.
        offset: Where the task left the job's log.
        since: When it did.
    """

    deployment: Deployment
    job: Job
    offset: int
    since: datetime


def watched_job(deployment: Deployment, job: Job, offset: int) -> WatchedJob:
    """What to hand to the triggerer."""
    environments = {job.environment: deployment.environments[job.environment]}
    without: dict[str, Any] = {"places": {}, "workers": Workers(), "notifications": {}}
    return WatchedJob(
        deployment=deployment.model_copy(update={**without, "environments": environments}),
        job=job,
        offset=offset,
        since=datetime.now(UTC),
    )


def may_be_watched(deployment: Deployment, job: Job) -> bool:
    """Whether a triggerer sees if the job still runs, as far as that can be known here.

    An engine behind a socket of this host is seen by a triggerer of this host: where Airflow is all on one host, and
    where tasks of each queue have triggerers of their own.
    """
    environment = deployment.environments.get(job.environment)
    if environment is None or not environment.is_deferrable():
        return False
    if not environment.is_seen_on_its_host_only():
        return True
    if conf.getboolean("triggerer", "queues_enabled", fallback=False):
        return True
    return bool(conf.get("core", "executor", fallback="") == _LOCAL_EXECUTOR)


class JobTrigger(BaseTrigger):
    """Fires when the job has ended, was ended because it hung, or cannot be seen from here.

    Its event has the `offset` in the job's log, the `problem` of a job that is not seen, and the error, as JSON, of one
    that is `overdue`.

    Args:
        watched: A `WatchedJob` as JSON.
    """

    def __init__(self, *, watched: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._json = watched
        self._overdue = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments; see `BaseTrigger`."""
        return "llm_pipeline_airflow.job_trigger.JobTrigger", {"watched": self._json}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the job has ended. One that cannot be looked at for long is given back to a worker."""
        watched = WatchedJob.model_validate_json(self._json)
        watch = Watch(watched.job, LogRelay(log).relay, watched.offset)
        if _seconds_since(watched.since) > _LONGEST_LOOK_SECONDS:
            log.info("this triggerer took over; the stage's log follows from where its worker left it")
        seen_at, patience, problem, active = datetime.now(UTC), _PATIENCE_AT_FIRST_SECONDS, "", True
        while active and not problem:
            late = _LATE_AT_MOST * _seconds_since(watched.since)
            await asyncio.sleep(min(max(SHORTEST_LOOK_SECONDS, late), _LONGEST_LOOK_SECONDS))
            with contained(f"looking for {watched.job.name}", "cannot see whether the stage still runs") as faults:
                active = await _in_thread(partial(self._look, watched, watch))
                seen_at, patience = datetime.now(UTC), _PATIENCE_SECONDS
            if faults and _seconds_since(seen_at) >= patience:
                problem = str(faults[0])
        event = {"offset": str(watch.offset), "problem": problem, "overdue": self._overdue}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """End the job of a task that was cleared or marked: in a thread that goes on when Airflow waits no longer."""
        await _in_thread(self._kill)

    def _look(self, watched: WatchedJob, watch: Watch) -> bool:
        job = watched.job
        try:
            return watch.look(_runner(watched), ends=bool(job.outcome_document or job.log.exists()))
        except StageOutOfTime as error:
            self._overdue = error.to_document().model_dump_json()
            return False
        except PipelineError:
            _open.cache_clear()  # its credentials may have been changed
            raise

    def _kill(self) -> None:
        watched = WatchedJob.model_validate_json(self._json)
        with contained(f"stopping {watched.job.name}", "the stage may still run"):
            if self._still_waits():
                log.info("another triggerer watches the stage now")
                return
            log.warning("stopping the stage's processes: the task was killed")
            _runner(watched).cancel(watched.job)

    def _still_waits(self) -> bool:
        ti = self.task_instance
        if ti is None:
            return False
        found = RuntimeTaskInstance.get_task_states(
            dag_id=ti.dag_id, map_index=ti.map_index, task_ids=[ti.task_id], run_ids=[ti.run_id]
        )
        return "deferred" in found.get(ti.run_id, {}).values()


def _runner(watched: WatchedJob) -> Runners:
    """One for all jobs of a deployment's environment: each has connections of its own to a cluster or an engine."""
    return _open(watched.deployment.model_dump_json())


@lru_cache(maxsize=16)
def _open(deployment: str) -> Runners:
    opened = Deployment.model_validate_json(deployment)
    fetch_secrets(opened.airflow_connections)  # what the store asks for: a pod that waits in vain is noted there
    return Runners(opened)


def _seconds_since(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()


async def _in_thread(function: Callable[[], T]) -> T:
    """Its log belongs to the same task: Airflow knows that by context variables."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, contextvars.copy_context().run, function)
