"""The definitions of the tasks that a release asks: its own files', and those that come with lm-eval. None is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_pipeline.accuracy.dataset_calls import DatasetCall, call_of_task, splits_of_task
from llm_pipeline.accuracy.task_data import data_files
from llm_pipeline.accuracy.task_files import TaskDirectory
from llm_pipeline.base.errors import ConfigError

_PATH, _NAME = "DATASET_PATH", "DATASET_NAME"


@dataclass(frozen=True)
class TaskDefinition:
    """One task of lm-eval, its own or of a task directory.

    Attributes:
        name: As it is asked.
        configuration: Its content, with what it includes and what a group above it says.
        call: What it asks the `datasets` library for; None where it brings its data itself.
    """

    name: str
    configuration: Mapping[str, Any]
    call: DatasetCall | None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are read of it."""
        return splits_of_task(self.configuration)

    @property
    def loads_by_code(self) -> bool:
        """Whether Python of its own brings the data, which cannot be known without running it."""
        return self.call is None and bool({"custom_dataset", "class"} & self.configuration.keys())


def own_definitions(defined: TaskDirectory, names: Sequence[str]) -> tuple[list[TaskDefinition], list[str]]:
    """The tasks of a directory behind some names, and the names that it does not define.

    Raises:
        ConfigError: Data beside the task files are missing.
    """
    known, unknown = defined.reached(names)
    found = []
    for name in sorted(known.intersection(defined.tasks)):
        task = defined.tasks[name]
        call = call_of_task(task.configuration)
        beside = call is None or _lie_beside(defined, name, call)
        found.append(TaskDefinition(name, task.configuration, None if beside else call))
    return found, sorted(unknown)


def _lie_beside(defined: TaskDirectory, name: str, call: DatasetCall) -> bool:
    """Whether a task's data are files of its directory."""
    task = defined.tasks[name]
    if "hf://" in str(call.options.get("data_files")):
        raise ConfigError(
            f"task {name} names files of the hub by their address",
            where=str(task.path),
            hint="name the data set: dataset_path: organisation/name, and data_files relative to it",
        )
    return data_files(defined.root, task.path, task.configuration) is not None


def package_definitions(names: Sequence[str]) -> list[TaskDefinition]:
    """lm-eval's own tasks behind some names: tasks, groups and tags.

    Raises:
        ConfigError: lm-eval has no task of that name.
    """
    from lm_eval.tasks import TaskManager

    index: Mapping[str, Any] = TaskManager().task_index
    if missing := sorted(set(names) - index.keys()):
        raise ConfigError(f"lm-eval has no task {', '.join(missing)}", hint="`lm-eval ls tasks` names all of them")
    found = [one for name in names for one in _reached(index, name, {})]
    return [_definition(str(configuration.get("task")), configuration) for configuration in found]


def _reached(index: Mapping[str, Any], name: str, overrides: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Configurations of the tasks behind a name, as lm-eval's factory merges them."""
    entry = index.get(name)
    if entry is None:
        yield {**overrides, "task": name}
    elif entry.kind.name == "TAG":
        for task in sorted(entry.tags):
            yield from _reached(index, task, overrides)
    elif entry.kind.name == "GROUP":
        yield from _members(index, entry.cfg, overrides)
    else:
        yield {**(entry.cfg or {}), **overrides, "task": name}


def _members(
    index: Mapping[str, Any], group: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    from lm_eval.tasks._factory import GROUP_FIELD_NAMES

    shared = {**{key: value for key, value in group.items() if key not in GROUP_FIELD_NAMES}, **overrides}
    members = group.get("task")
    for member in members if isinstance(members, list) else []:
        if isinstance(member, str):
            yield from _reached(index, member, shared)
        elif "group" in member and member["group"] in index:
            yield from _reached(index, member["group"], {**shared, **_without(member, "group")})
        elif "group" in member:
            yield from _members(index, member, shared)
        else:
            yield from _reached(index, member["task"], {**shared, **_without(member, "task")})


def _without(member: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in member.items() if name != key}


def _definition(name: str, configuration: Mapping[str, Any]) -> TaskDefinition:
    stated = configuration.get("class")
    if isinstance(stated, str):
        return TaskDefinition(name, configuration, _call_of_class(Path(stated)))
    return TaskDefinition(name, configuration, call_of_task(configuration))


def _call_of_class(reference: Path) -> DatasetCall | None:
    """What a task that is a Python class reads, by its constants; `reference` is `directory/module.Class`."""
    module, _, name = reference.name.rpartition(".")
    path = reference.with_name(f"{module}.py")
    if not path.is_file():
        return None
    classes = {node.name: node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ClassDef)}
    constants: dict[str, Any] = {}
    while name in classes:
        own = classes[name]
        constants = {**dict(_constants(own)), **constants}
        name = next((base.id for base in own.bases if isinstance(base, ast.Name)), "")
    if not isinstance(constants.get(_PATH), str):
        return None
    return DatasetCall(path=constants[_PATH], config=constants.get(_NAME))


def _constants(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name) and target.id in (_PATH, _NAME):
                    yield target.id, statement.value.value
