"""The promotion of one target as a task group, mapped over that target alone.

    canary_5 -> [approve_25] -> canary_25 -> ... -> canary_100 -> settle -> rollback

The groups of a release stand behind one another: the next target begins when the way back of the one before has ended.
Its first step runs whatever became of that target, and looks itself whether it may begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, TriggerRule, chain, task_group

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline_airflow.promotion import CanaryStepOperator, RollbackOperator
from llm_pipeline_airflow.release_tasks import ReleaseTasks
from llm_pipeline_airflow.step_approval import StepApprovalOperator
from llm_pipeline_airflow.turn import Turn

LAST_GATE = "targets.load_test"
APPROVE = "approve"


class PromotionGroup:
    """The canary of one target, and what ends it.

    Args:
        tasks: Makes the tasks.
        loaded: The release config.
        group_id: Id of the group.
        name: The target's name.
    """

    def __init__(self, tasks: ReleaseTasks, loaded: LoadedRelease, *, group_id: str, name: str) -> None:
        self._tasks = tasks
        self._policy = loaded.release.policy.canary
        self._group_id = group_id
        self._name = name

    def add(self, *, after: Sequence[BaseOperator], behind: Mapping[str, str]) -> tuple[BaseOperator, BaseOperator]:
        """Add the group; `settle` and `rollback` are returned.

        Args:
            after: The approval, and the way back of the target before this one.
            behind: The `settle` of the targets before this one.
        """
        ends: list[BaseOperator] = []
        trigger_rule = TriggerRule.ALL_DONE if behind else TriggerRule.ALL_SUCCESS

        @task_group(group_id=self._group_id, group_display_name=f"Promotion {self._name}", tooltip="To production")
        def promotion(target: str) -> None:
            tasks = self._steps(target, _turn(behind), trigger_rule)
            settle = self._tasks.stage("settle", target, only=self._name)
            rollback = RollbackOperator(
                subject=target,
                canary_steps=tuple(task.task_id for task in tasks if isinstance(task, CanaryStepOperator)),
                **self._tasks.shared("rollback", only=self._name),
            ).as_teardown(on_failure_fail_dagrun=False)
            chain(list(after), *tasks, settle, rollback)
            ends.extend((settle, rollback))

        promotion.expand(target=[self._name])
        settle, rollback = ends
        return settle, rollback

    def _steps(self, target: str, turn: Turn, trigger_rule: TriggerRule) -> list[BaseOperator]:
        """The steps, each behind its approval where it needs one; the first task of all looks whether it may begin."""
        tasks: list[BaseOperator] = []
        percents = self._policy.steps_percent
        for before, percent in zip((None, *percents), percents, strict=False):
            if percent in self._policy.approve_before_percent:
                tasks.append(self._approval(target, percent, before, turn, **_first(tasks, trigger_rule)))
            tasks.append(self._step(target, percent, turn, **_first(tasks, trigger_rule)))
        return tasks

    def _step(self, target: str, percent: float, turn: Turn, **options: Any) -> BaseOperator:
        shared = self._shared("canary", percent, f"Canary {percent:g} %")
        return CanaryStepOperator(subject=target, step=f"{percent:g}", turn=turn, **shared, **options)

    def _approval(self, target: str, percent: float, before: float | None, turn: Turn, **options: Any) -> BaseOperator:
        return StepApprovalOperator(
            target=target,
            step=percent,
            before=before,
            turn=turn,
            timeout_hours=self._policy.pause_deadline_seconds / 3600,
            **self._shared("approve_step", percent, f"Approve {percent:g} %"),
            **options,
        )

    def _shared(self, stage: str, percent: float, display_name: str) -> dict[str, Any]:
        task_id = f"{'approve' if stage == 'approve_step' else stage}_{percent:g}".replace(".", "_")
        return self._tasks.shared(stage, only=self._name) | {"task_id": task_id, "task_display_name": display_name}


def _turn(settled: Mapping[str, str]) -> Turn:
    """What every task of a promotion looks at: whatever became of the targets before it, it looks itself."""
    if not settled:
        return Turn(last_gate=LAST_GATE)
    return Turn(last_gate=LAST_GATE, needs=(APPROVE,), promoted_before=dict(settled))


def _first(tasks: Sequence[BaseOperator], trigger_rule: TriggerRule) -> dict[str, Any]:
    return {} if tasks else {"trigger_rule": trigger_rule}
