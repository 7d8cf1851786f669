"""What the configuration of a release's tasks alone shows to go wrong, before a machine is paid for.

The baseline stage finds out the rest by scoring a few right answers of each task before it loads the model.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from llm_pipeline.accuracy.task_files import TaskCode, TaskDirectory, read_task_directory, task_code
from llm_pipeline.accuracy.task_metrics import refuse_by_file
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.plain_files import read_plain_file
from llm_pipeline.config.release import Evaluation
from llm_pipeline.planning.task_pool import known_facts

_MODULE_BYTES = 2**20
_ALWAYS_THERE = frozenset({"lm_eval", "datasets", "numpy", "torch", "transformers"})
"""What the evaluation itself runs on."""


def check_tasks(evaluation: Evaluation, configs_root: Path) -> tuple[str, ...]:
    """Refuse tasks that cannot be judged, or that do what they may not.

    Returns:
        Warnings: modules that tasks need where models are evaluated.

    Raises:
        ConfigError: A task is unknown, has no score of single items, or runs code without permission.
    """
    defined = _local(evaluation, configs_root)
    if defined is not None:
        _check_local(defined, evaluation)
    unknown = defined.reached(evaluation.tasks)[1] if defined else set(evaluation.tasks)
    _refuse_generated_code(evaluation, [name for name in sorted(unknown) if _matches(name, "generated_code")])
    needed = task_modules(evaluation, configs_root)
    return tuple(
        f"{name} needs the Python modules {', '.join(modules)} where models are evaluated: `llm-pipeline doctor` with "
        "this release config looks for them"
        for name, modules in needed.items()
    )


def task_modules(evaluation: Evaluation, configs_root: Path) -> dict[str, tuple[str, ...]]:
    """Modules that tasks import beside lm-eval's own, by task; tasks without any are left out."""
    found: dict[str, tuple[str, ...]] = {}
    defined = _local(evaluation, configs_root)
    known, unknown = defined.reached(evaluation.tasks) if defined else (set(), set(evaluation.tasks))
    for name in sorted(unknown):
        patterns: Mapping[str, list[str]] = known_facts()["modules"]
        modules = {module for pattern, own in patterns.items() if fnmatch(name, pattern) for module in own}
        if modules:
            found[name] = tuple(sorted(modules))
    if defined is not None:
        for name in sorted(known.intersection(defined.tasks)):
            files = {_module_file(code) for code in task_code(defined.tasks[name].configuration)}
            if modules := {one for file in files if file is not None for one in _imported(file)}:
                found[name] = tuple(sorted(modules))
    return found


def _local(evaluation: Evaluation, configs_root: Path) -> TaskDirectory | None:
    if evaluation.task_directory is None:
        return None
    return read_task_directory(configs_root / evaluation.task_directory, allow_code=evaluation.allow_task_code)


def _check_local(defined: TaskDirectory, evaluation: Evaluation) -> None:
    known, unknown = defined.reached(evaluation.tasks)
    tasks = sorted(known.intersection(defined.tasks))
    if not unknown and (strange := sorted(evaluation.task_options.keys() - known)):
        raise ConfigError(f"evaluation.task_options names {', '.join(strange)}, which is no task that is asked")
    for name in tasks:
        configuration = defined.tasks[name].configuration
        options = evaluation.task_options.get(name)
        listed = configuration.get("metric_list")
        # With Python of its own a task may give other values than its metrics' names say.
        if isinstance(listed, list) and next(task_code(configuration), None) is None:
            refuse_by_file(name, list(_metrics(listed)), options.metric if options else None)
    unsafe = [name for name in tasks if defined.tasks[name].configuration.get("unsafe_code")]
    _refuse_generated_code(evaluation, unsafe)


def _metrics(listed: list[Any]) -> Iterator[tuple[str, str | None]]:
    for entry in listed:
        if isinstance(entry, dict) and isinstance(entry.get("metric"), str):
            aggregation = entry.get("aggregation")
            yield entry["metric"], aggregation if isinstance(aggregation, str) else None


def _refuse_generated_code(evaluation: Evaluation, tasks: list[str]) -> None:
    if tasks and not evaluation.allow_generated_code:
        raise ConfigError(
            f"{', '.join(tasks)} runs code that the model writes, on the machine that evaluates",
            hint="set evaluation.allow_generated_code: true if that machine may, or leave the task out",
        )


def _matches(name: str, fact: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in known_facts()[fact])


def _module_file(code: TaskCode) -> Path | None:
    module = code.reference.rpartition(".")[0]
    path = code.directory / f"{module.replace('.', '/')}.py"
    return path if path.is_file() else None


def _imported(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports, the standard library's and its own left out."""
    try:
        tree = ast.parse(read_plain_file(path, _MODULE_BYTES))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"no Python: {error}", where=str(path)) from error
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    own = {file.stem for file in path.parent.glob("*.py")}
    return names - sys.stdlib_module_names - _ALWAYS_THERE - own
