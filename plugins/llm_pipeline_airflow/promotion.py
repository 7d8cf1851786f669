"""Operators around production: the human decision, the canary's steps, and the way back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from llm_pipeline.config.loading import load_release
from llm_pipeline.flow import Flow
from llm_pipeline.stages.contract import StageRequest
from llm_pipeline_airflow.evidence import markdown_table
from llm_pipeline_airflow.operators import RELEASE_ID_TEMPLATE, StageOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

_STARTED = frozenset({"success", "failed", "running", "up_for_retry"})


class ReleaseApprovalOperator(ApprovalOperator):
    """Asks a human, showing every gate of the targets that passed; no answer in time is a rejection.

    Args:
        config_path: The release config.
        last_gate: Task id of the gate that a target must have passed in this run.
        timeout_hours: Time to answer.
        release_id: The release; by default what the task `resolve` returned.
    """

    template_fields = ("subject", "body", "release_id")

    def __init__(
        self,
        *,
        config_path: str,
        last_gate: str,
        timeout_hours: float,
        release_id: str = RELEASE_ID_TEMPLATE,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            subject="Promote the release to production?",
            defaults=self.REJECT,
            response_timeout=timedelta(hours=timeout_hours),
            **kwargs,
        )
        self.config_path = config_path
        self.last_gate = last_gate
        self.release_id = release_id

    def execute(self, context: Context) -> Any:
        """Write the request with the gates' table, then wait."""
        flow = Flow.open(load_release(Path(self.config_path)).deployment, self.release_id)
        offered = _passed_targets(context, self.last_gate)
        self.subject = f"Promote {flow.record.model.id} to production on {', '.join(offered)}?"
        self.body = _approval_body(flow, offered)
        self.log.info("asking for approval:\n%s", self.body)
        return super().execute(context)


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
        if self.subject not in _passed_targets(context, self.last_gate):
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


def _passed_targets(context: Context, gate: str) -> list[str]:
    """Targets whose gate ended well in this run; Airflow drops the XCom of a gate that is run again."""
    returned = context["ti"].xcom_pull(task_ids=gate)  # all map indexes; one alone comes without its list
    results = returned if isinstance(returned, list) else [returned]
    return [result["subject"] for result in results if result]


def _own_states(context: Context, task_ids: tuple[str, ...]) -> dict[str, str]:
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, map_index=ti.map_index, task_ids=list(task_ids), run_ids=[ti.run_id])
    return dict(states.get(ti.run_id, {}))


def _approval_body(flow: Flow, offered: list[str]) -> str:
    recipe = flow.chosen_recipe
    subjects = {recipe, *offered}
    gates = [result for (_, subject), result in sorted(flow.results().items()) if subject in subjects]
    gates.sort(key=lambda result: result.timings.started_at)
    left_out = [target for target in flow.targets if target not in offered]
    lines = [
        f"Release `{flow.record.release_id}`, recipe `{recipe}`, commit `{flow.record.model.commit}`.",
        "",
        markdown_table(gates),
    ]
    if left_out:
        lines += ["", f"Not offered, for a gate did not pass: {', '.join(left_out)}."]
    return "\n".join([*lines, "", "**Approve** starts the canary; **Reject** ends the release here."])
