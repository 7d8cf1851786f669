"""Operators around production: the canary's steps, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from llm_pipeline.stages.contract import StageRequest
from llm_pipeline_airflow.approvals import passed_targets
from llm_pipeline_airflow.ladder import unsuccessful
from llm_pipeline_airflow.operators import StageOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

_STARTED = frozenset({"success", "failed", "running", "up_for_retry"})


class CanaryStepOperator(StageOperator):
    """Moves traffic of one target one step on, if that target passed its gates in this very run.

    Args:
        last_gate: Task id of the mapped gate before the approval; its results name the targets that passed.
        needs: Ids of unmapped tasks without whose success nothing is begun, though its trigger rule lets it run.
        promoted_before: `settle` of the targets that come first, by target: the first failure among those that passed
            their gates stops the others.
    """

    def __init__(
        self,
        *,
        last_gate: str,
        needs: tuple[str, ...] = (),
        promoted_before: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("stage", "canary")
        super().__init__(**kwargs)
        self.last_gate = last_gate
        self.needs = needs
        self.promoted_before = dict(promoted_before or {})

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowFailException: The target did not pass its gates; an approval of other targets is none of its own.
            AirflowSkipException: What it needs did not end well, or a target before it was not promoted.
        """
        if missing := unsuccessful(context, self.needs):
            raise self._skipped(f"{missing} did not end well in this run")
        offered = passed_targets(context, self.last_gate)
        if self.subject not in offered:
            raise AirflowFailException(f"{self.subject} did not pass {self.last_gate} in this run: no traffic is moved")
        for target, settle in self.promoted_before.items():
            if target in offered and mapped_state(context, settle) != "success":
                raise self._skipped(f"{target} comes first and was not promoted")
        return super().request(context)

    def _skipped(self, why: str) -> AirflowSkipException:
        """What to raise; the log says it too, for the UI shows of this exception nothing but the state."""
        self._ending = "not begun"
        self.log.info("no traffic of %s is moved: %s", self.subject, why)
        return AirflowSkipException(why)


class RollbackOperator(StageOperator):
    """Gives all traffic back to the stable version, unless the release was promoted or moved no traffic at all.

    Args:
        canary_steps: Task ids of the steps; none of them started means nothing to roll back.
    """

    def __init__(self, *, canary_steps: tuple[str, ...], **kwargs: Any) -> None:
        kwargs.setdefault("stage", "rollback")
        super().__init__(**kwargs)
        self.canary_steps = canary_steps

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowSkipException: This run moved no traffic; a canary of another run is none of its business.
        """
        if not _STARTED.intersection(_own_states(context, self.canary_steps).values()):
            raise AirflowSkipException(f"no traffic of {self.subject} was moved by this run")
        return super().request(context)


def _own_states(context: Context, task_ids: tuple[str, ...]) -> dict[str, str]:
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, map_index=ti.map_index, task_ids=list(task_ids), run_ids=[ti.run_id])
    return dict(states.get(ti.run_id, {}))


def mapped_state(context: Context, task_id: str) -> str | None:
    """State in this run of a task in a group that is mapped over one name."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, map_index=0, task_ids=[task_id], run_ids=[ti.run_id])
    return next(iter(states.get(ti.run_id, {}).values()), None)
