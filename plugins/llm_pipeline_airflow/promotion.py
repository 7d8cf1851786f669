"""Operators around production: the canary's steps, the settlement, and the rollback."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from llm_pipeline.notifications.telling import tell_canary
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline_airflow.assets import ROLLBACKS, event_extra, tell_rollback
from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.links import page_of
from llm_pipeline_airflow.operators import StageOperator
from llm_pipeline_airflow.states import task_states

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from llm_pipeline.release.tasks import Task

_STARTED = frozenset({"success", "failed", "running", "up_for_retry"})
_TELL_SECONDS = 10.0


class NotifyingOperator(StageOperator):
    """A stage that acts on a canary: people are told of it while it runs and when it has ended."""

    attends = True
    _told_at = 0.0
    _page = ""

    def poll_until_complete(self, external_id: JsonValue, context: Context) -> Any:
        """Relay the stage's log until it ends; see `StageOperator`."""
        self._page = page_of(context)
        try:
            return super().poll_until_complete(external_id, context)
        finally:
            self._tell()

    def attend(self) -> None:
        """Tell what there is, now and then."""
        if time.monotonic() - self._told_at >= _TELL_SECONDS:
            self._tell()
            self._told_at = time.monotonic()

    def _tell(self) -> None:
        with contained("reading whom to notify", "no notification is sent"):  # a broken config ends no canary
            loaded = config_with_secrets(self.config_path)
            tell_canary(loaded.deployment, loaded.config.place_of(self.subject), self.release_id, link=self._page)


class SettleOperator(StageOperator):
    """Makes the candidate the production version, which is an event of the place's asset."""

    def conclude(self, context: Context, result: StageResult) -> Any:
        """Say in the event what is live now; see `StageOperator`."""
        returned = super().conclude(context, result)
        flow = self.flow()
        place = flow.record.place_of(self.subject)
        for asset in self.outlets:
            context["outlet_events"][asset].extra.update(event_extra(flow.store, place, "promoted"))
        return returned


class RollbackOperator(NotifyingOperator):
    """Gives all traffic back to the stable version, unless the release was promoted or moved no traffic at all.

    A canary that waits for a person waits on if the guard was heard of lately, which watches its deadline: clear its
    step to go on with it. Without a guard it is rolled back.
    """

    def __init__(self, *, flow_task: Task, **kwargs: Any) -> None:
        kwargs.setdefault("stage", "rollback")
        super().__init__(flow_task=flow_task, outlets=[ROLLBACKS], **kwargs)
        self.canary_steps, self.settled = flow_task.tears_down, flow_task.unless

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowSkipException: This run moved no traffic, or promoted the release; a canary of another run is none
                of its business.
        """
        index = context["ti"].map_index
        if not _STARTED.intersection(task_states(context, self.canary_steps, index).values()):
            raise self._skipped(f"no traffic of {self.subject} was moved by this run")
        if set(task_states(context, self.settled, index).values()) == {"success"}:
            raise self._skipped("the release was promoted")
        request = super().request(context)
        guarded = self.configured.deployment.guard_schedule is not None
        return request.model_copy(update={"config": {**request.config, "leave_paused": guarded}})

    def conclude(self, context: Context, result: StageResult) -> Any:
        """Add the event of a rollback; see `StageOperator`."""
        returned = super().conclude(context, result)
        if result.metrics.get("phase") == "rolled back":
            flow = self.flow()
            tell_rollback(context, flow.deployment, flow.store, flow.record.place_of(self.subject))
        return returned
