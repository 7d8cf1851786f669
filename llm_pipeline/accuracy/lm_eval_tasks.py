"""lm-eval's task manager over a directory of task files, wherever it lies, without a network and without a cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_pipeline.accuracy.task_files import task_configurations, task_data
from llm_pipeline.accuracy.task_groups import TaskGroup
from llm_pipeline.errors import ConfigError

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


def task_manager(directory: Path | None) -> TaskManager:
    """lm-eval's task manager over the task files of one directory, and nothing else.

    The data of the tasks are read here, so the directory works wherever it lies, need not be writable and leaves
    nothing in a dataset cache.

    Args:
        directory: Directory with `*.yaml` task files; None for the tasks that come with lm-eval.

    Raises:
        ConfigError: A task file is not plain YAML, or its data are missing, damaged or outside the directory.
    """
    from lm_eval.tasks import TaskManager

    if directory is None:
        return TaskManager()
    logging.getLogger("lm_eval.api.task").addFilter(_is_about_this_task)
    place, configurations = directory, task_configurations(directory)

    class DirectoryTasks(TaskManager):  # type: ignore[misc]  # lm_eval is untyped
        def load(self, task_list: Any) -> Any:
            names = [task_list] if isinstance(task_list, str) else list(task_list)
            if unknown := [name for name in names if name not in configurations]:
                raise ConfigError(f"no task {unknown}: there are {sorted(configurations)}", where=str(place))
            return super().load([_with_data(place, configurations[name]) for name in names])

    return DirectoryTasks(include_defaults=False)


def groups_and_tags(
    manager: TaskManager, loaded: Mapping[str, Any], names: Sequence[str]
) -> tuple[tuple[TaskGroup, ...], dict[str, tuple[str, ...]]]:
    """What stands behind each name that is not a task's own.

    Args:
        manager: It loaded them.
        loaded: lm-eval's groups by name, as it loaded them.
        names: What was asked for.

    Returns:
        Groups that lm-eval gives one score to, and the tasks of each mere label: of a tag, and of a group without an
        aggregated metric, whose own subgroups may have one.
    """
    groups: dict[str, TaskGroup] = {}
    tags = {}
    for name in names:
        if name in loaded:
            found = _scored_groups(loaded[name])
            groups |= {group.name: group for group in found}
            if name not in groups:
                tags[name] = tuple(sorted(task.task_name for task in loaded[name].get_all_tasks()))
        elif name in manager.all_tags:
            tags[name] = tuple(sorted(manager.task_index[name].tags))
    return tuple(groups[name] for name in sorted(groups)), tags


def _scored_groups(group: Any) -> list[TaskGroup]:
    """The group itself where lm-eval aggregates it, or else those inside of it."""
    if not group.has_aggregation:
        return [found for inner in group.get_all_groups(recursive=False) for found in _scored_groups(inner)]
    weighting: Literal["items", "tasks"] = "items" if group.aggregate_metric_list[0].weight_by_size else "tasks"
    names = tuple(sorted(task.task_name for task in group.get_all_tasks()))
    return [TaskGroup(name=group.name, tasks=names, weighting=weighting)]


def _is_about_this_task(record: logging.LogRecord) -> bool:
    """False for the advice that lm-eval gives whenever a task's data come from a function."""
    return "Custom kwargs can be passed" not in record.getMessage()


def _with_data(directory: Path, configuration: Mapping[str, Any]) -> dict[str, Any]:
    rows = task_data(directory, configuration)
    if not rows:
        return dict(configuration)

    def read_dataset(**_: Any) -> Any:
        from datasets import Dataset, DatasetDict

        return DatasetDict({split: Dataset.from_list(lines) for split, lines in rows.items()})

    kept = {key: value for key, value in configuration.items() if key not in ("dataset_path", "dataset_kwargs")}
    return {**kept, "custom_dataset": read_dataset}
