"""Operators around production: the canary's steps, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from llm_pipeline.stages.contract import StageRequest
from llm_pipeline_airflow.approvals import passed_targets
from llm_pipeline_airflow.operators import StageOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

_STARTED = frozenset({"success", "failed", "running", "up_for_retry"})


class CanaryStepOperator(StageOperator):
    """Moves traffic of one target one step on, if that target passed its gates in this very run.

    Args:
        last_gate: Task id of the mapped gate before the approval; the indexes of both groups are the same.
    """

    def __init__(self, *, last_gate: str, **kwargs: Any) -> None:
        kwargs.setdefault("stage", "canary")
        super().__init__(**kwargs)
        self.last_gate = last_gate

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowFailException: The target did not pass its gates; an approval of other targets is none of its own.
        """
        if self.subject not in passed_targets(context, self.last_gate):
            raise AirflowFailException(f"{self.subject} did not pass {self.last_gate} in this run: no traffic is moved")
        return super().request(context)


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
