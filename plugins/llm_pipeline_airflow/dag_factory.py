"""One DAG for each release config: `llm_pipeline.release.flow` in Airflow's terms.

A group of the flow is a task group, mapped over recipes or targets. Where its items come in turn there is one group for
each, in their order: a recipe begins when the one before has ended, however it did, and skips itself when nothing needs
it any more; a target is promoted when the one before was. A failed index stops only itself.

The run fails when no recipe passed, or when any target was not promoted, for only steps that decide are leaves that
count: what clears up is a teardown, which always runs and never hides a failure. `claim` is the setup of `give_back`:
whatever is cleared, the run takes its turn among the model's releases again, and gives it back. That task fails where a
person marked the run as failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, TaskGroup, TriggerRule, task_group
from airflow.sdk.definitions.param import ParamsDict

from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.release.loading import LoadedRelease, load_release
from llm_pipeline.release.step import Effect, Group, Kind, Scope, Start
from llm_pipeline.release.tasks import Lane, Task, release_tasks
from llm_pipeline_airflow.approvals import QuestionOperator, StepApprovalOperator
from llm_pipeline_airflow.assets import live_model
from llm_pipeline_airflow.claim import ClaimSensor, GiveBackOperator
from llm_pipeline_airflow.dag_options import dag_tags, documentation
from llm_pipeline_airflow.operators import LABEL_TEMPLATE, ReportOperator, ResolveOperator, StageOperator
from llm_pipeline_airflow.placement import placement_arguments
from llm_pipeline_airflow.promotion import NotifyingOperator, RollbackOperator, SettleOperator
from llm_pipeline_airflow.settings import dag_id_of
from llm_pipeline_airflow.started_run import form_of
from llm_pipeline_airflow.task_endings import task_defaults
from llm_pipeline_airflow.watch import release_schedule

_OPERATORS: Mapping[str, type[StageOperator]] = {
    "resolve": ResolveOperator,
    "report": ReportOperator,
    "rollback": RollbackOperator,
}
"""Stages that have a class of their own."""
_PREPARATION = "Lock the model, pin, plan and fetch; score the unquantized model"
"""What comes before the first recipe: a box of the graph."""

TRIGGER_RULES = {
    Start.ALL_GOOD: TriggerRule.ALL_SUCCESS,
    Start.ANY_GOOD: TriggerRule.ALL_DONE,  # and `states.require_any`
    Start.ALWAYS: TriggerRule.ALL_DONE,
}


def release_dag(config_path: Path, **options: Any) -> DAG:
    """The DAG of a release config.

    Args:
        config_path: The config.
        options: Options of `DAG` in place of ours; what `default_args` calls back is called beside ours.

    Raises:
        ConfigError: The config, or anything that it names, is wrong.
    """
    loaded = load_release(config_path)
    ladder = climbing_order(loaded.release)
    ours: dict[str, Any] = {
        "dag_id": dag_id_of(config_path),
        "dag_display_name": f"Release {loaded.config.name}",
        "description": loaded.config.description or f"Release {loaded.config.model.id}",
        "doc_md": documentation(
            "release", config=loaded.config, release=loaded.release, recipes=map(loaded.release.recipe, ladder)
        ),
        "schedule": release_schedule(loaded),
        "catchup": False,
        "auto_register": False,  # a DAG file names its own: the check of all of them must add none
        "max_active_runs": 1,
        "tags": dag_tags(
            "release",
            loaded.deployment.name,
            models=[loaded.config.model.id],
            targets=loaded.config.targets,
            engines=[target.engine for target in loaded.release.targets],
        ),
    }
    defaults = task_defaults(loaded.deployment.owner, options.pop("default_args", None))
    dag = DAG(**ours | options, default_args=defaults)  # noqa: AIR002 - both say when it runs
    with dag:
        _draw(loaded, ladder)
    dag.params = ParamsDict(form_of(loaded))  # last: each operator copies what is there, a quarter of the parse
    return dag


class ReleaseTaskGroup(TaskGroup):
    """A release as a part of a DAG of one's own, with tasks before it and after it.

        with DAG("weekly", schedule="@weekly", max_active_runs=1):
            refresh() >> ReleaseTaskGroup(Path("releases/chat.yaml")) >> announce()

    Its tasks keep their names, so that a DAG holds one release, whose form becomes a part of the DAG's.

    Args:
        config_path: The release config.
        default_args: Of its tasks, in place of ours; what they call back is called beside ours.

    Raises:
        ConfigError: The config, or anything that it names, is wrong.
    """

    def __init__(
        self,
        config_path: Path,
        *,
        group_id: str = "release",
        default_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        loaded = load_release(config_path)
        options.setdefault("group_display_name", f"Release {loaded.config.name}")
        options["default_args"] = task_defaults(loaded.deployment.owner, default_args)
        super().__init__(group_id, prefix_group_id=False, **options)
        with self:
            _draw(loaded, climbing_order(loaded.release))
        dag = self.dag
        dag.params = ParamsDict({**form_of(loaded), **dag.params})
        dag.tags.add(dag_id_of(config_path))  # by which the pages know its runs


def _draw(loaded: LoadedRelease, ladder: Sequence[str]) -> None:
    """Add the tasks of a release to the DAG, or the group, that is open."""
    tasks = release_tasks(loaded.release, ladder)
    drawing = _Drawing(loaded, tasks)
    for number, (lane, members) in enumerate(groupby(tasks, key=lambda task: task.lane)):
        if lane is not None:
            drawing.add_lane(lane, tuple(members))
            continue
        with nullcontext() if number else _box("preparation", "Preparation", _PREPARATION):
            for task in members:
                drawing.add(task)


class _Drawing:
    """The operators of one DAG, each behind those that it comes after."""

    def __init__(self, loaded: LoadedRelease, tasks: Sequence[Task]) -> None:
        self._loaded = loaded
        self._lanes = Counter(lane.group.name for lane in {task.lane for task in tasks if task.lane})
        self._boxes: dict[str, TaskGroup] = {}
        self._operators: dict[str, BaseOperator] = {}

    def add_lane(self, lane: Lane, members: Sequence[Task]) -> None:
        """Add the tasks of a lane, in a group that is mapped over its items."""
        over, box = lane.group.over.value, self._box(lane.group)

        # None would be the DAG itself, whatever group is open.
        around: dict[str, Any] = {} if box is None else {"parent_group": box}

        @task_group(group_id=lane.id, group_display_name=lane.title, tooltip=lane.group.words, **around)
        def group(**mapped: str) -> None:
            # Edges are set inside: outside, `>>` binds to what this function returns and lets other tasks start early.
            for task in members:
                self.add(task, mapped[over])

        group.expand(**{over: list(lane.items)})

    def _box(self, group: Group) -> TaskGroup | None:
        """What is around lanes that come in turn: a single box while closed, which names no task."""
        if self._lanes[group.name] > 1 and group.name not in self._boxes:
            self._boxes[group.name] = _box(group.name, group.title, group.words)
        return self._boxes.get(group.name)

    def add(self, task: Task, item: str = "") -> None:
        """Add the operator that does a task's work; `item` is what its group is mapped over, or empty."""
        step, options = task.step, self._shared(task)
        operator: BaseOperator
        if step.kind is Kind.CLAIM:
            operator = ClaimSensor(**options) if step.decides else GiveBackOperator(**options)
        elif step.kind is Kind.QUESTION:
            operator = self._question(task, item)
        else:
            options["stage"] = step.stage_name
            if item:
                options["subject"] = item
            if task.lane and step.heavy:
                options["max_active_tis_per_dagrun"] = self._loaded.deployment.computing_at_once
            stage_operator, more = self._stage(task)
            operator = stage_operator(flow_task=task, **options, **more)
        self._operators[task.id] = operator
        operator << [self._operators[task_id] for task_id in task.after]
        if not step.decides:
            counts = step.kind is Kind.CLAIM  # it fails where a person ended the run
            operator.as_teardown(setups=self._setups(task) or None, on_failure_fail_dagrun=counts)

    def _stage(self, task: Task) -> tuple[type[StageOperator], dict[str, Any]]:
        """Which class runs a stage, and what it is told beside what every stage is."""
        step = task.step
        if step.name == "settle":
            config, deployment = self._loaded.config, self._loaded.deployment.name
            places = map(config.place_of, task.items)
            return SettleOperator, {"outlets": [live_model(deployment, config.model.id, place) for place in places]}
        if step.scope is Scope.CANARY_STEP:
            return NotifyingOperator, {"step": f"{task.percent:g}"}
        return _OPERATORS.get(step.name, StageOperator), {}

    def _question(self, task: Task, item: str) -> BaseOperator:
        release, shared = self._loaded.release, self._shared(task)
        if task.percent is not None:
            policy = release.policy.canary
            hours = policy.pause_deadline_seconds / 3600
            percents = (None, *policy.steps_percent)
            before = percents[policy.steps_percent.index(task.percent)]
            return StepApprovalOperator(
                target=item, step=task.percent, before=before, flow_task=task, timeout_hours=hours, **shared
            )
        hours = release.approval.timeout_hours
        return QuestionOperator(flow_task=task, timeout_hours=hours, **shared)

    def _shared(self, task: Task) -> dict[str, Any]:
        rule: dict[str, Any] = {"trigger_rule": TRIGGER_RULES[task.start]} if task.step.decides else {}
        return {
            "task_id": task.id.rpartition(".")[2],
            "task_display_name": task.title,
            "doc_md": task.step.words,
            "config_path": str(self._loaded.path),
            "map_index_template": LABEL_TEMPLATE,
            **rule,
            **placement_arguments(task, self._loaded),
        }

    def _setups(self, task: Task) -> list[BaseOperator]:
        """What a teardown takes back, and what comes right before that in its group.

        Airflow runs a teardown when one of its setups succeeded, so that a server whose own gate failed is stopped,
        too. Traffic is no setup: its teardown looks itself whether any was moved.
        """
        if task.step.effect is Effect.PRODUCTION:
            return []
        torn = [self._operators[task_id] for task_id in task.tears_down]
        group = torn[0].task_group if torn else None
        before = [above for one in torn for above in one.upstream_list if task.lane and above.task_group is group]
        return [*before, *torn]  # type: ignore[list-item]


def _box(name: str, title: str, words: str) -> TaskGroup:
    """A box of the graph, closed at first, in which tasks keep their names."""
    return TaskGroup(group_id=name, prefix_group_id=False, group_display_name=title, tooltip=words)
