"""Operators that run a stage of a release as a process of its own, survive their worker, and obey the gates."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, ResumableJobMixin
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferralError, TaskDeferralTimeout

from llm_pipeline.base.errors import ErrorDocument, RemoteStageError, Terminal, Transient, from_document
from llm_pipeline.base.logging import LogRelay
from llm_pipeline.notifications.telling import Event, Origin, judged
from llm_pipeline.operations.upkeep import replace_holders
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.decision import note_ended
from llm_pipeline.release.loading import ConfiguredRelease, load_release
from llm_pipeline.release.time_limit import GRACE_SECONDS
from llm_pipeline.release_progress import ReleaseProgress, passed, placement, resolve_request
from llm_pipeline.runners.runner import Job, Runners, Watch
from llm_pipeline.store import open_store
from llm_pipeline_airflow.claim import claim_of
from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.ended import who_ended
from llm_pipeline_airflow.faults import get_logger
from llm_pipeline_airflow.job_trigger import JobTrigger, may_be_watched, watched_job
from llm_pipeline_airflow.links import ReleaseReportLink
from llm_pipeline_airflow.placement import queue_of
from llm_pipeline_airflow.started_run import (
    overrides_of,
    remember_commit,
    remember_run,
    revision_of_run,
    run_name,
    who_started,
)
from llm_pipeline_airflow.states import require_begun
from llm_pipeline_airflow.task_endings import Happened, refused

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from llm_pipeline.release.tasks import Task

log = get_logger(__name__)

RELEASE_ID_TEMPLATE = "{{ ti.xcom_pull(task_ids='resolve') or '' }}"
LABEL_TEMPLATE = "{{ task.label }}"

_SHORTEST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 1.0
_SECONDS_BEFORE_DEFERRAL = 10.0
"""A stage that ends sooner is not worth a deferral, which takes two starts of a task."""

_RUNNING, _ENDED, _LOST = "running", "ended", "lost"


class StageOperator(ResumableJobMixin, BaseOperator):
    """Runs one stage of a release.

    The stage is a detached process, a container or a pod. When the worker dies, the next try finds it by the job in the
    task state store and goes on reading its log; nothing is started twice. While a container or a pod runs, the task is
    deferred: it holds no worker, and the triggerer relays the log (`job_trigger`). A verdict other than GO fails the
    task without a retry, and so does every terminal error; transient ones are tried again.

    Args:
        config_path: The release config; it says where the release's store and interpreters are.
        stage: Name of the stage.
        subject: What the stage works on: a recipe, a target or nothing.
        step: Appended to the subject as `:<step>`: a canary step's percentage.
        release_id: The release; by default what the task `resolve` returned.
        flow_task: The task of the flow that it is; None for one on its own, which always may begin.
    """

    template_fields: Collection[str] = ("subject", "release_id")
    external_id_key = "stage_job"
    operator_extra_links = (ReleaseReportLink(),)
    ui_color = "#d9e8fb"
    attends = False
    """Whether it has something to do while its stage runs, and so is never deferred."""

    def __init__(
        self,
        *,
        config_path: str,
        stage: str,
        subject: str = "",
        step: str = "",
        release_id: str = RELEASE_ID_TEMPLATE,
        flow_task: Task | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config_path = config_path
        self.flow_task = flow_task
        self.stage = stage
        self.subject = subject
        self.step = step
        self.release_id = release_id
        self._ending = ""
        self._result: StageResult | None = None
        self._job: Job | None = None
        self._returned: Any = None
        self.stays = self.attends
        self._offset = 0

    @property
    def label(self) -> str:
        """What the UI shows for this task instance: the subject, and how it ended."""
        return " · ".join(part for part in (self.subject or self.stage, self._ending) if part)

    def execute(self, context: Context) -> Any:
        """Run the stage and return its verdict, key, metrics and whether its result was reused."""
        with self._told_errors(context):
            return self.execute_resumable(context)

    def resume(self, context: Context, job: JsonValue, event: dict[str, str]) -> Any:
        """Go on when the triggerer has seen the stage's end, or cannot see it; what `execute` returns."""
        self.stays, self._offset = True, int(event["offset"])
        if event["problem"]:
            log.warning("the triggerer cannot see the stage, so this worker follows it: %s", event["problem"])
        elif self._runner.is_active(Job.model_validate(job)):
            log.warning("the triggerer sees another engine than this worker, which follows the stage itself")
        with self._told_errors(context):
            if event["overdue"]:
                raise from_document(ErrorDocument.model_validate_json(event["overdue"]))
            return self.poll_until_complete(job, context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """See `BaseOperator`; a triggerer that failed, or that nobody started, loses no result."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            log.warning("no triggerer told of the stage's end, so this worker follows it: %s", error)
        self.stays = True
        return self.execute(context)

    @contextmanager
    def _told_errors(self, context: Context) -> Iterator[None]:
        try:
            yield
        except Terminal as error:
            self._ending = error.kind
            raise refused(context, error.told, told=isinstance(error, RemoteStageError)) from error
        except Transient as error:
            log.warning("%s", error.told)  # what Airflow shows of the exception itself names no runbook
            raise

    def on_kill(self) -> None:
        """Stop the stage's whole process group."""
        if self._job is not None:
            log.warning("stopping the stage's processes: the task was killed")
            self._runner.cancel(self._job)

    def flow(self) -> ReleaseProgress:
        """The release that the stage works for."""
        return ReleaseProgress.open(self.configured.deployment, self.release_id)

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowFailException: What it needs did not end well; a result of an earlier run is none of this one.
            AirflowSkipException: This run does not have it, or it has nothing to do.
        """
        task = self.flow_task if self.flow_task is not None and self.flow_task.step.decides else None
        if task is not None:
            try:
                require_begun(context, task, self.subject, self.flow)
            except AirflowSkipException:
                self._ending = "skipped"
                raise
        if not self.release_id:
            raise self._skipped("there is no release: its first stage failed")
        flow = self.flow()
        if why := flow.left_out(self.stage, self.subject):
            raise self._skipped(why)
        if task is not None and task.step.is_attempt and (why := flow.passed_over(self.subject)):
            raise self._skipped(why)
        return flow.request(self.stage, f"{self.subject}:{self.step}" if self.step else self.subject)

    def _skipped(self, why: str) -> AirflowSkipException:
        """What to raise; the log says it too, for the UI shows of a skip nothing but the state."""
        self._ending = "skipped"
        log.info("%s is skipped: %s", self.subject or self.stage, why)
        return AirflowSkipException(why)

    @cached_property
    def configured(self) -> ConfiguredRelease:
        """The release config and its deployment, read once a try; what else it names is in the release's record."""
        return config_with_secrets(self.config_path)

    def conclude(self, context: Context, result: StageResult) -> Any:
        """Turn a stage's result into the task's: what is returned crosses XCom."""
        self._result = result
        verdict = result.judgement.verdict.value if result.judgement else None
        self._ending = " · ".join(part for part in (verdict, "reused" if result.reused else None) if part)
        if not passed(result) and result.judgement is not None:
            raise refused(context, f"{result.stage} {result.subject}".strip() + f": {verdict}", told=True)
        return {
            "release_id": result.release_id,
            "subject": result.subject,
            "verdict": verdict,
            "key": result.key,
            "reused": result.reused,
            "metrics": dict(result.metrics),
        }

    def events_of(self, origin: Origin, _happened: Happened, _context: Context) -> tuple[Event, ...] | None:
        """The stage's verdict, if it came to a result; see `ReleaseNotifier`."""
        if self._result is None:
            return None
        event = judged(origin, self._result)
        return (event,) if event else ()

    def submit_job(self, context: Context) -> JsonValue:
        """Start the stage's process; see `ResumableJobMixin`."""
        request = self.request(context)
        self._check_claim(context, request)
        job = self._runner.submit(request, placement(request))
        log.info("the stage's log: %s", job.log_place)
        return job.model_dump(mode="json")

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:  # noqa: ARG002
        """Running, ended (with a result or a terminal error) or lost; see `ResumableJobMixin`."""
        job = Job.model_validate(external_id)
        if self._runner.is_active(job):
            log.info("the stage of an earlier attempt is still running; following it")
            return _RUNNING
        try:
            self._runner.outcome(job)
        except Transient:
            return _LOST
        except Terminal:
            return _ENDED
        return _ENDED

    def is_job_active(self, status: str) -> bool:
        return status == _RUNNING

    def is_job_succeeded(self, status: str) -> bool:
        """A terminal error counts too, for it is final."""
        return status == _ENDED

    def poll_until_complete(self, external_id: JsonValue, context: Context) -> Any:
        """Relay the stage's log until it ends, and return its result: a reconnected try returns this value.

        Raises:
            TaskDeferred: It has not ended soon, and a triggerer can see when it does.
        """
        self._job = Job.model_validate(external_id)
        wait, watch = _SHORTEST_POLL_SECONDS, Watch(self._job, LogRelay(log).relay, self._offset)
        deferred_at = time.monotonic() + _SECONDS_BEFORE_DEFERRAL
        while watch.look(self._runner):
            self.attend()
            if time.monotonic() >= deferred_at:
                self._defer(self._job, watch.offset, context)
            time.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_POLL_SECONDS) if not watch.heard else _SHORTEST_POLL_SECONDS
        return self.get_job_result(external_id, context)

    def _defer(self, job: Job, offset: int, context: Context) -> None:
        """Wait in the triggerer, if it can see the job; return if it cannot."""
        deployment = self.configured.deployment
        if self.stays or not may_be_watched(deployment, job):
            self.stays = True  # without asking again
            return
        self.queue = queue_of(self.executor_config, context["ti"].map_index) or self.queue
        self.defer(
            trigger=JobTrigger(watched=watched_job(deployment, job, offset).model_dump_json()),
            method_name="resume",
            kwargs={"job": job.model_dump(mode="json")},
            timeout=self._longest_deferral(job, context),
        )

    def _longest_deferral(self, job: Job, context: Context) -> timedelta:
        """A little more than the job's own time, or what is left of the task's, which Airflow 3.3 does not count."""
        longest = timedelta(seconds=job.time_limit.longest_seconds + job.start_seconds + 4 * GRACE_SECONDS)
        if self.execution_timeout is not None:
            longest = min(longest, context["ti"].start_date + self.execution_timeout - datetime.now(UTC))
        return max(longest, timedelta(seconds=1))

    def attend(self) -> None:
        """Called again and again while the stage runs."""

    def get_job_result(self, external_id: JsonValue, context: Context) -> Any:
        """The task's result, or the stage's error; see `ResumableJobMixin`."""
        if self._returned is None:  # a fresh try asks twice: after polling, and for the result
            job, ended = Job.model_validate(external_id), True
            try:
                self._returned = self.conclude(context, self._runner.outcome(job))
            except Transient:
                ended = False  # the next try finds the job, and its outcome
                raise
            finally:
                if ended and (state := context.get("task_state_store")) is not None:
                    state.delete(self.external_id_key)  # a cleared task runs its stage again
        return self._returned

    def _check_claim(self, context: Context, request: StageRequest) -> None:
        """Start nothing for a release that lost its turn, and take nothing down that another one put up."""
        if self.stage == "report":
            return
        claim = claim_of(self.configured, context)
        if not self.is_teardown:
            claim.check("" if self.stage == "resolve" else request.release_id)
        elif (other := claim.taken_by_another()) is not None:
            raise AirflowSkipException(f"{other} took over: its servers are left alone")

    @cached_property
    def _runner(self) -> Runners:
        return Runners(self.configured.deployment)


class ReportOperator(StageOperator):
    """Writes the release's report, which says also that a person ended the run."""

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do; see `StageOperator`."""
        if self.release_id and (by := who_ended(context)):
            flow = self.flow()
            note_ended(flow.store, self.release_id, flow.resolved_at, by)
        return super().request(context)


class ResolveOperator(StageOperator):
    """Pins the model's revision and returns the release's id; `started_run` says which commit that is."""

    template_fields: Collection[str] = ()

    def __init__(self, *, config_path: str, **kwargs: Any) -> None:
        kwargs.setdefault("stage", "resolve")
        super().__init__(config_path=config_path, release_id="", **kwargs)

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowSkipException: The run has nothing to release.
        """
        overrides = overrides_of(context["params"], self.configured)
        loaded = load_release(Path(self.config_path), overrides)
        revision = revision_of_run(loaded, context)
        if context["params"].get("replace"):
            store, by = open_store(loaded.deployment.store), f"run {run_name(context)}"
            replace_holders(store, loaded.places.values(), loaded.config.model.id, by=by)
        return resolve_request(loaded, revision, by=who_started(context))

    def conclude(self, context: Context, result: StageResult) -> str:
        """Remember which release this run works on, for the report's tab, and for the release watch; returns its id."""
        store = open_store(self.configured.deployment.store)
        remember_run(store, context["dag_run"].dag_id, context["run_id"], result.release_id)
        remember_commit(self.configured, result.release_id, context)
        super().conclude(context, result)
        self._ending = result.release_id
        return result.release_id
