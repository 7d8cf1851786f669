"""Task files of a directory, read without lm-eval: what `plan` counts, and what is refused before lm-eval reads them.

lm-eval passes over a file that is not plain YAML without a word, takes either of two tasks of one name, and imports
what `!function` names. Here nothing is run. Data lie in the directory (`dataset_path: json` with
`dataset_kwargs.data_files`), beside the task's file or named from the top, so that the directory works wherever it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_pipeline.base.errors import ConfigError, unless_io
from llm_pipeline.base.plain_files import read_plain_file
from llm_pipeline.base.yaml_document import CONFIG_BOUNDS, Tagged, parse_yaml

KINDS = ("json", "csv", "parquet", "text")
"""Formats of data that lie beside task files."""

_CODE_TAG = "!function"
_BOUNDS = replace(CONFIG_BOUNDS, tags=frozenset({_CODE_TAG}))
_GLOB = frozenset("*?[")


@dataclass(frozen=True)
class TaskFile:
    """The file of one task or group, and its content with what it includes."""

    path: Path
    content: Mapping[str, Any]

    @property
    def brings_data(self) -> bool:
        """Whether its data are files of the directory."""
        return self.content.get("dataset_path") in KINDS and "hf://" not in str(self.content.get("dataset_kwargs"))


@dataclass(frozen=True)
class TaskDirectory:
    """Everything that a directory defines; names of tags are those of their tasks."""

    root: Path
    tasks: Mapping[str, TaskFile]
    groups: Mapping[str, TaskFile]
    tags: Mapping[str, tuple[str, ...]]

    def behind(self, names: Iterable[str]) -> tuple[set[str], set[str]]:
        """The directory's tasks that stand behind some names, and names among them that it does not define."""
        seen, waiting = set[str](), list(names)
        while waiting:
            if (name := waiting.pop()) in seen:
                continue
            seen.add(name)
            if name in self.groups:
                waiting += _members(self.groups[name].content["task"])
            elif name not in self.tasks:
                waiting += self.tags.get(name, ())
        return seen.intersection(self.tasks), seen - self.tasks.keys() - self.groups.keys() - self.tags.keys()

    def documents(self, name: str) -> int | None:
        """How many documents a task has; None where its data are not in the directory, or cannot be counted here.

        Raises:
            ConfigError: The data are missing, damaged or outside the directory.
        """
        task, content = self.tasks[name], self.tasks[name].content
        split = content.get("test_split") or content.get("validation_split")
        if not task.brings_data or split is None:
            return None
        files = data_files(self.root, task.path, content)
        if str(split) not in files:
            raise ConfigError(f"its data have no split {split!r}, only {', '.join(files)}", where=str(task.path))
        lines = content["dataset_path"] in {"json", "text"} and "field" not in content["dataset_kwargs"]
        return _count(files[str(split)]) if lines else None


def read_task_directory(directory: Path, *, allow_code: bool = False) -> TaskDirectory:
    """Read every task file below a directory.

    Args:
        directory: Where they lie.
        allow_code: Files may name Python of their own.

    Raises:
        ConfigError: A file is not plain YAML, or defines what another one does; it includes a file that is missing or
            outside the directory; or it names Python and may not.
    """
    root = directory.resolve()
    tasks: dict[str, TaskFile] = {}
    groups: dict[str, TaskFile] = {}
    tags: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.yaml")):
        file = TaskFile(path, _merged(root, _inside(root, path, "the task file", path)))
        kind = "group" if "group" in file.content else "task"
        if kind not in file.content:
            continue  # others include it
        name = file.content[kind]
        if not isinstance(name, str) or (kind == "group" and not isinstance(file.content.get("task"), list)):
            raise ConfigError("a file needs `task: <name>`, or `group: <name>` with a list of tasks", where=str(path))
        if name in tasks or name in groups:
            raise ConfigError(f"another file has {kind} {name} already", where=str(path))
        if (code := _code(file.content)) and not allow_code:
            hint = "set evaluation.allow_task_code: true if you trust all of its directory"
            raise ConfigError(f"a task file runs Python of its own (`{_CODE_TAG} {code}`)", where=str(path), hint=hint)
        (groups if kind == "group" else tasks)[name] = file
        for tag in _names(file.content.get("tag")) if kind == "task" else ():
            tags.setdefault(tag, []).append(name)
    return TaskDirectory(root, tasks, groups, {tag: tuple(own) for tag, own in tags.items()})


def _merged(root: Path, path: Path) -> dict[str, Any]:
    """A file's content over that of the files it includes, as lm-eval merges them."""
    content = parse_yaml(read_plain_file(path, _BOUNDS.bytes + 1), where=str(path), bounds=_BOUNDS).value
    if not isinstance(content, dict):
        raise ConfigError("a task file needs `task: <name>`", where=str(path))
    merged: dict[str, Any] = {}
    for name in _names(content.pop("include", None)):
        other = _inside(root, path.parent / name, f"the included file {name!r}", path)
        if not other.is_file():
            raise ConfigError(f"the included file {name!r} does not exist", where=str(path))
        merged |= _merged(root, other)
    return merged | {str(key): value for key, value in content.items()}


def _names(value: Any) -> list[str]:
    return [str(name) for name in (value if isinstance(value, list) else [] if value is None else [value])]


def _members(members: Any) -> list[str]:
    """Names of the tasks and groups that a group lists; of groups inside of it too."""
    found = []
    for member in members if isinstance(members, list) else [members]:
        if isinstance(member, dict) and isinstance(member.get("task"), list):
            found += _members(member["task"])
        else:
            found.append(str(member.get("group") or member.get("task")) if isinstance(member, dict) else str(member))
    return found


def _code(value: Any) -> str:
    if isinstance(value, Tagged):
        return value.text
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next((code for one in inner if (code := _code(one))), "")


def data_files(root: Path, path: Path, content: Mapping[str, Any]) -> dict[str, tuple[Path, ...]]:
    """The data files of a task of the directory by split.

    Args:
        root: The task directory, resolved.
        path: The task's file.
        content: What it says; its `dataset_path` is one of `KINDS`.

    Raises:
        ConfigError: A file is missing, empty, outside of the directory, or cannot be read; or none is named.
    """
    options = content.get("dataset_kwargs")
    options = options if isinstance(options, dict) else {}
    stated = options.get("data_files")
    if not stated:
        raise ConfigError(f"dataset_path {content['dataset_path']} needs dataset_kwargs.data_files", where=str(path))
    bases = [base / str(options.get("data_dir") or "") for base in (path.parent, root)]
    found: dict[str, tuple[Path, ...]] = {}
    for split, names in (stated if isinstance(stated, dict) else {"train": stated}).items():
        own = [_found(root, bases, name, path) for name in _names(names)]
        found[str(split)] = tuple(dict.fromkeys(file for files in own for file in files))
    return found


def _found(root: Path, bases: Sequence[Path], name: str, where: Path) -> list[Path]:
    for base in bases:
        files = sorted(base.glob(name)) if _GLOB.intersection(name) and name[0] not in "./" else [base / name]
        if here := [_inside(root, file, f"the data file {name!r}", where) for file in files if file.exists()]:
            if any(file.is_file() and not file.stat().st_size for file in here):
                raise ConfigError(f"unreadable task data: the file {name!r} is empty", where=str(where))
            return here
    raise ConfigError(f"unreadable task data: the file {name!r} does not exist", where=str(where))


def _inside(root: Path, path: Path, what: str, where: Path) -> Path:
    """A path with its links resolved; refused outside of `root`."""
    resolved = path.resolve()
    if not resolved.is_relative_to(root):
        raise ConfigError(f"{what} is outside the task directory", where=str(where))
    return resolved


def _count(files: Sequence[Path]) -> int | None:
    """How many documents some files hold, one a line; None where one is a JSON array."""
    total = 0
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise unless_io(error, ConfigError(f"unreadable task data: {error}", where=str(file))) from error
        if text.lstrip()[:1] == "[":
            return None
        total += sum(1 for line in text.split("\n") if line.strip())
    return total
