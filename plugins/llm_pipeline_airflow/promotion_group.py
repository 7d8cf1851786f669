"""The promotion of one target as a task group, mapped over that target alone.

    canary_5 -> ... -> canary_100 -> settle -> rollback

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

        @task_group(group_id=self._group_id, group_display_name=f"Promotion {self._name}", tooltip="To production")
        def promotion(target: str) -> None:
            first, *others = self._policy.steps_percent
            steps = [self._step(target, first, **_behind(behind)), *(self._step(target, step) for step in others)]
            settle = self._tasks.stage("settle", target, only=self._name)
            rollback = RollbackOperator(
                subject=target,
                canary_steps=tuple(step.task_id for step in steps),
                **self._tasks.shared("rollback", only=self._name),
            ).as_teardown(on_failure_fail_dagrun=False)
            chain(list(after), *steps, settle, rollback)
            ends.extend((settle, rollback))

        promotion.expand(target=[self._name])
        settle, rollback = ends
        return settle, rollback

    def _step(self, target: str, percent: float, **options: Any) -> CanaryStepOperator:
        shared = self._tasks.shared("canary", only=self._name) | {
            "task_id": f"canary_{percent:g}".replace(".", "_"),
            "task_display_name": f"Canary {percent:g} %",
        }
        return CanaryStepOperator(subject=target, step=f"{percent:g}", last_gate=LAST_GATE, **shared, **options)


def _behind(settled: Mapping[str, str]) -> dict[str, Any]:
    """Options of a first step: whatever became of the targets before it, it looks itself."""
    if not settled:
        return {}
    return {"promoted_before": dict(settled), "needs": (APPROVE,), "trigger_rule": TriggerRule.ALL_DONE}
