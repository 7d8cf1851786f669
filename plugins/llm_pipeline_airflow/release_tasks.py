"""The operators of a release's tasks: which class does a step's work, and what all of one release have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import BaseOperator, TriggerRule

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.release.step import Ending, Kind, Scope, Start
from llm_pipeline.release.tasks import Task
from llm_pipeline_airflow.approvals import QuestionOperator
from llm_pipeline_airflow.claim import ClaimSensor, GiveBackOperator
from llm_pipeline_airflow.ladder import NeedingOperator, RecipeOperator
from llm_pipeline_airflow.operators import LABEL_TEMPLATE, StageOperator
from llm_pipeline_airflow.placement import placement_arguments
from llm_pipeline_airflow.promotion import CanaryStepOperator, RollbackOperator, Turn
from llm_pipeline_airflow.resolve_operator import ResolveOperator
from llm_pipeline_airflow.step_approval import StepApprovalOperator

TRIGGER_RULES = {
    Start.ALL_GOOD: TriggerRule.ALL_SUCCESS,
    Start.ANY_GOOD: TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
    Start.ALWAYS: TriggerRule.ALL_DONE,
}


class ReleaseTasks:
    """Makes the operators of one release.

    Args:
        loaded: The release config.
    """

    def __init__(self, loaded: LoadedRelease) -> None:
        self._loaded = loaded

    def operator(self, task: Task, item: str) -> BaseOperator:
        """The operator of a task; `item` is what the task group is mapped over, or empty."""
        step = task.step
        if step.kind is Kind.CLAIM:
            return (ClaimSensor if step.decides else GiveBackOperator)(**self._shared(task))
        if step.kind is Kind.QUESTION:
            return self._question(task, item)
        options = self._shared(task) | {"stage": step.name}
        if item:
            options["subject"] = item
        if task.lane and step.heavy:
            options["max_active_tis_per_dagrun"] = self._loaded.deployment.computing_at_once
        if step.scope is Scope.CANARY_STEP:
            return CanaryStepOperator(step=f"{task.percent:g}", turn=turn(task), **options)
        return self._special.get(step.name, self._stage)(task, options)

    @property
    def _special(self) -> Mapping[str, Callable[[Task, dict[str, Any]], BaseOperator]]:
        """Stages whose operators do more than run them."""
        return {
            "resolve": lambda _task, options: ResolveOperator(**options),
            "rollback": lambda task, options: RollbackOperator(canary_steps=task.tears_down, **options),
        }

    def _stage(self, task: Task, options: dict[str, Any]) -> BaseOperator:
        step = task.step
        if step.scope is Scope.RECIPE:
            return RecipeOperator(needs=_needed(task), useless_without=task.useless_without, **options)
        if task.needs and step.decides:
            needs, wants = (_needed(task, otherwise) for otherwise in (Ending.FAILED, Ending.SKIPPED))
            return NeedingOperator(needs=needs, wants=wants, **options)
        return StageOperator(**options)

    def _question(self, task: Task, item: str) -> BaseOperator:
        release, shared = self._loaded.release, self._shared(task)
        if task.percent is not None:
            policy = release.policy.canary
            hours = policy.pause_deadline_seconds / 3600
            percents = (None, *policy.steps_percent)
            before = percents[policy.steps_percent.index(task.percent)]
            return StepApprovalOperator(
                target=item, step=task.percent, before=before, turn=turn(task), timeout_hours=hours, **shared
            )
        if not task.step.asked(release, None):
            ours = ("config_path", "map_index_template")
            return EmptyOperator(**{name: value for name, value in shared.items() if name not in ours})
        return QuestionOperator(
            step=task.step.name, target=item, gates=task.gates, timeout_hours=release.approval.timeout_hours, **shared
        )

    def _shared(self, task: Task) -> dict[str, Any]:
        rule = {"trigger_rule": TRIGGER_RULES[task.start]} if task.step.decides else {}  # a teardown has its own
        return {
            "task_id": task.id.rpartition(".")[2],
            "task_display_name": task.title,
            "doc_md": task.step.words,
            "config_path": str(self._loaded.path),
            "map_index_template": LABEL_TEMPLATE,
            **rule,
            **placement_arguments(task, self._loaded),
        }


def turn(task: Task) -> Turn:
    """What the operator of a promotion's task looks at, before traffic is moved."""
    needs = tuple(task_id for need in task.needs for task_id in need.tasks)
    return Turn(last_gates=task.offered, needs=needs, promoted_before=dict(task.stopped_by))


def _needed(task: Task, otherwise: Ending | None = None) -> tuple[str, ...]:
    """Ids of the tasks that one needs, whatever its trigger rule: all, or those without which it ends so."""
    return tuple(name for need in task.needs if otherwise in (None, need.otherwise) for name in need.tasks)
