"""Operators around production: whether a target may be promoted now, the canary's steps, and the rollback."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from llm_pipeline.operations.decisions import read_decision
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.flow import APPROVAL
from llm_pipeline_airflow.assets import ROLLBACKS, event_extra, tell_rollback
from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.faults import contained, get_logger
from llm_pipeline_airflow.notifications import page_of, tell_canary
from llm_pipeline_airflow.operators import StageOperator
from llm_pipeline_airflow.states import passed_targets, task_states, unsuccessful

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)


@dataclass(frozen=True)
class PromotionOrder:
    """What must be so before traffic of a target is moved.

    Attributes:
        last_gates: Task ids of the mapped gates before the approval; their results name the targets that passed.
        needs: Ids of unmapped tasks without whose success nothing is begun, though the trigger rule lets it run.
        promoted_before: `settle` of the targets that come first, by target: the first failure among those that passed
            their gates stops the others.
    """

    last_gates: tuple[str, ...]
    needs: tuple[str, ...] = ()
    promoted_before: Mapping[str, str] = field(default_factory=dict)

    def check(self, context: Context, target: str, flow: Callable[[], ReleaseProgress]) -> None:
        """Return if the target may be promoted now.

        Raises:
            AirflowFailException: It did not pass its gates; an approval of other targets is none of its own.
            AirflowSkipException: What it needs did not end well, this run has no such target, or one before it was not
                promoted.
        """
        if missing := unsuccessful(context, self.needs):
            raise _not_begun(target, f"{', '.join(missing)} did not succeed in this run")
        offered = passed_targets(context, self.last_gates)
        if target not in offered:
            if why := flow().left_out("canary", target):
                raise _not_begun(target, why)
            raise AirflowFailException(
                f"{target} did not pass {', '.join(self.last_gates)} in this run: no traffic is moved"
            )
        decision = read_decision(flow(), APPROVAL)
        if decision is not None and decision.answer == "approved":
            if not decision.takes(target):
                raise _not_begun(target, f"{decision.by} did not take it")
            offered = [other for other in offered if decision.takes(other)]
        for other, settle in self.promoted_before.items():
            if other in offered and "success" not in task_states(context, [settle], map_index=0).values():
                raise _not_begun(target, f"{other} comes first and was not promoted")


def _not_begun(target: str, why: str) -> AirflowSkipException:
    """What to raise; the log says it too, for the UI shows of this exception nothing but the state."""
    log.info("no traffic of %s is moved: %s", target, why)
    return AirflowSkipException(why)


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
        with contained("reading whom to notify") as faults:  # the config may have changed: no reason to end a canary
            loaded = config_with_secrets(self.config_path)
            tell_canary(loaded.deployment, loaded.config.place_of(self.subject), self.release_id, link=self._page)
        for fault in faults:
            log.warning("no notification is sent: %s", fault)


class CanaryStepOperator(NotifyingOperator):
    """Moves traffic of one target one step on, if that target passed its gates in this very run.

    Args:
        turn: Whether it may.
    """

    def __init__(self, *, turn: PromotionOrder, **kwargs: Any) -> None:
        kwargs.setdefault("stage", "canary")
        super().__init__(**kwargs)
        self.turn = turn

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do, if it is the target's turn; see `PromotionOrder`."""
        try:
            self.turn.check(context, self.subject, self.flow)
        except AirflowSkipException:
            self._ending = "skipped"
            raise
        return super().request(context)


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

    Args:
        canary_steps: Task ids of the steps; none of them started means nothing to roll back.
        settled: Task ids after whose success nothing is left to roll back.
    """

    def __init__(self, *, canary_steps: tuple[str, ...], settled: tuple[str, ...], **kwargs: Any) -> None:
        kwargs.setdefault("stage", "rollback")
        super().__init__(outlets=[ROLLBACKS], **kwargs)
        self.canary_steps = canary_steps
        self.settled = settled

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
