"""lm-eval task files of a directory, read without lm-eval: tasks, groups and tags, and how many documents they have.

The directory and those in it hold task files (`*.yaml` with `task:`), groups (`group:` with a list) and what they
include, as in lm-eval. Data lie beside them (`dataset_path: json` with `dataset_kwargs.data_files`), so that the
directory works wherever it lies; nothing that a file names may lie outside of it. Files that run Python (`!function`)
are refused unless the release config allows it, and nothing is run here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_pipeline.accuracy.task_data import count_documents, data_files, inside, named
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.plain_files import read_plain_file
from llm_pipeline.base.yaml_document import CONFIG_BOUNDS, Tagged, parse_yaml

_DEFAULT_OUTPUT_TYPE = "generate_until"
"""What lm-eval takes a task for that does not say."""
_OUTPUT_TYPES = ("generate_until", "multiple_choice", "loglikelihood", "loglikelihood_rolling")
_CODE_TAG = "!function"
_BOUNDS = replace(CONFIG_BOUNDS, tags=frozenset({_CODE_TAG}))
_IGNORED = frozenset({"__pycache__", ".ipynb_checkpoints"})
_SOURCES = ("dataset_path", "dataset_kwargs", "dataset_name", "custom_dataset", "include", "class")


@dataclass(frozen=True)
class TaskCode:
    """A function that a task file names: `module.function`, looked up beside the file that says so."""

    reference: str
    directory: Path


@dataclass(frozen=True)
class TaskFile:
    """The file of one task or group, and its content with what it includes."""

    path: Path
    configuration: Mapping[str, Any]


@dataclass(frozen=True)
class TaskDirectory:
    """Everything that a directory defines."""

    root: Path
    tasks: Mapping[str, TaskFile]
    groups: Mapping[str, TaskFile]
    tags: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        """What an evaluation may ask for by name."""
        return sorted({*self.tasks, *self.groups, *self.tags})

    def reached(self, names: Sequence[str]) -> tuple[set[str], set[str]]:
        """What stands behind some names: the directory's tasks, groups and tags; and names that it does not define."""
        known: set[str] = set()
        unknown: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in known or name in unknown:
                continue
            if name not in self.tasks and name not in self.groups and name not in self.tags:
                unknown.add(name)
                continue
            known.add(name)
            if name in self.groups:
                waiting += [one for one in _members(self.groups[name].configuration["task"]) if one]
            elif name in self.tags and name not in self.tasks:
                waiting += self.tags[name]
        return known, unknown

    def documents(self, name: str) -> int | None:
        """How many documents a task has; None where its data are not in the directory, or cannot be counted here.

        Raises:
            ConfigError: The data are missing, damaged or outside the directory.
        """
        task = self.tasks[name]
        files = data_files(self.root, task.path, task.configuration)
        split = task.configuration.get("test_split") or task.configuration.get("validation_split")
        if files is None or split is None:
            return None
        if str(split) not in files:
            raise ConfigError(f"its data have no split {split!r}, only {', '.join(files)}", where=str(task.path))
        return count_documents(task.configuration, files[str(split)])

    def output_type(self, name: str) -> str:
        """`generate_until`, `multiple_choice`, `loglikelihood` or `loglikelihood_rolling`."""
        return str(self.tasks[name].configuration.get("output_type", _DEFAULT_OUTPUT_TYPE))


def read_task_directory(directory: Path, *, allow_code: bool = False) -> TaskDirectory:
    """Read every task file below a directory.

    Args:
        directory: Where they lie.
        allow_code: Files may name Python of their own; it is not run here.

    Raises:
        ConfigError: A file is not plain YAML, defines nothing, or what another one does; it names a file that is
            missing or outside the directory; or it names Python and may not.
    """
    root = directory.resolve()
    found: dict[Path, dict[str, Any]] = {}
    included: set[Path] = set()
    for path in sorted(root.rglob("*.yaml")):
        if path.is_file() and not _IGNORED.intersection(path.relative_to(root).parts):
            found[path] = _merged(root, inside(root, path, "the task file", path), included, ())
    tasks: dict[str, TaskFile] = {}
    groups: dict[str, TaskFile] = {}
    for path, configuration in found.items():
        if "task" not in configuration and "group" not in configuration and path in included:
            continue
        kind = "group" if "group" in configuration else "task"
        name = _checked_name(path, kind, configuration)
        if name in tasks or name in groups:
            raise ConfigError(f"another file has {kind} {name} already", where=str(path))
        (groups if kind == "group" else tasks)[name] = TaskFile(path, configuration)
    if not allow_code:
        _refuse_code([*tasks.values(), *groups.values()])
    defined = TaskDirectory(root, tasks, groups, _tags(tasks))
    for name, group in groups.items():
        if name in defined.reached([*_members(group.configuration["task"])])[0]:
            raise ConfigError(f"group {name} is among its own members", where=str(group.path))
    return defined


def _tags(tasks: Mapping[str, TaskFile]) -> dict[str, tuple[str, ...]]:
    tags: dict[str, tuple[str, ...]] = {}
    for name, task in sorted(tasks.items()):
        for tag in named(task.configuration.get("tag"), "tag", task.path):
            tags[tag] = (*tags.get(tag, ()), name)
    return tags


def task_code(value: Any) -> Iterator[TaskCode]:
    """The functions that a configuration names, wherever in it."""
    if isinstance(value, TaskCode):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from task_code(one)
    elif isinstance(value, list):
        for one in value:
            yield from task_code(one)


def _merged(root: Path, path: Path, included: set[Path], above: tuple[Path, ...]) -> dict[str, Any]:
    """A file's content over that of the files it includes, as lm-eval merges them."""
    if path in above:
        raise ConfigError("the file includes itself", where=str(path))
    configuration = _read(path)
    merged: dict[str, Any] = {}
    for name in named(configuration.pop("include", None), "include", path):
        other = inside(root, path.parent / name, f"the included file {name!r}", path)
        if not other.is_file():
            raise ConfigError(f"the included file {name!r} does not exist", where=str(path))
        included.add(other)
        merged |= {
            key: value for key, value in _merged(root, other, included, (*above, path)).items() if key != "task_list"
        }
    return merged | configuration


def _read(path: Path) -> dict[str, Any]:
    content = parse_yaml(read_plain_file(path, _BOUNDS.bytes + 1), where=str(path), bounds=_BOUNDS).value
    if not isinstance(content, dict):
        raise ConfigError("a task file needs `task: <name>`", where=str(path))
    return {str(key): _with_place(value, path.parent) for key, value in content.items()}


def _with_place(value: Any, directory: Path) -> Any:
    if isinstance(value, Tagged):
        return TaskCode(value.text, directory)
    if isinstance(value, dict):
        return {key: _with_place(one, directory) for key, one in value.items()}
    return [_with_place(one, directory) for one in value] if isinstance(value, list) else value


def _checked_name(path: Path, kind: str, configuration: Mapping[str, Any]) -> str:
    name = configuration.get(kind)
    if kind == "group" and not isinstance(configuration.get("task"), list):
        raise ConfigError("a group needs a list of tasks; a label of one task is its `tag`", where=str(path))
    if not isinstance(name, str):
        raise ConfigError(f"a {kind} file needs `{kind}: <name>`", where=str(path))
    if kind == "group":
        _check_members(path, name, configuration)
    elif (output := configuration.get("output_type", _DEFAULT_OUTPUT_TYPE)) not in _OUTPUT_TYPES:
        raise ConfigError(
            f"task {name}: output_type is {str(output)[:40]!r}",
            where=str(path),
            hint=f"one of {', '.join(_OUTPUT_TYPES)}",
        )
    return name


def _check_members(path: Path, name: str, group: Mapping[str, Any]) -> None:
    """Refuse what would let a group change where its tasks' data are read from."""
    if stated := [key for key in _SOURCES if key in group]:
        raise ConfigError(f"group {name} states {', '.join(stated)}: state it in its tasks' files", where=str(path))
    for member in group["task"]:
        if isinstance(member, str):
            continue
        if not isinstance(member, dict) or not {"task", "group"} & member.keys():
            raise ConfigError(f"a member of group {name} is neither a name nor a task: {member!r}", where=str(path))
        if isinstance(member.get("task"), list):
            _check_members(path, str(member.get("group")), member)
        elif stated := [key for key in _SOURCES if key in member]:
            raise ConfigError(
                f"a member of group {name} states {', '.join(stated)}: give it a task file of its own", where=str(path)
            )


def _members(members: Any) -> Iterator[str]:
    """Names of the tasks and groups that a group lists; of groups inside of it too."""
    for member in members if isinstance(members, list) else [members]:
        if isinstance(member, str):
            yield member
        elif isinstance(member, dict) and "group" in member:
            yield from _members(member["task"]) if "task" in member else [str(member["group"])]
        elif isinstance(member, dict):
            yield str(member["task"])


def _refuse_code(files: Sequence[TaskFile]) -> None:
    for file in files:
        if (code := next(task_code(file.configuration), None)) is not None:
            raise ConfigError(
                f"a task file runs Python of its own (`{_CODE_TAG} {code.reference}`)",
                where=str(file.path),
                hint="set evaluation.allow_task_code: true if you trust all of its directory",
            )


def refuse_generated_code(tasks: Sequence[str]) -> None:
    """Refuse tasks whose scoring runs code that the model writes.

    Raises:
        ConfigError: There are such tasks.
    """
    if tasks:
        raise ConfigError(
            f"{', '.join(tasks)} runs code that the model writes, on the machine that evaluates",
            hint="set evaluation.allow_generated_code: true if that machine may, or leave the task out",
        )
