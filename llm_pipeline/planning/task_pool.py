"""What is known of a release's tasks before anything runs: items and kind, where they can be scored, what is wrong.

Local task files are read (their data are counted); of lm-eval's own tasks a table holds the well-known ones. A served
model answers in text, without probabilities of a prompt's tokens. The baseline stage finds out the rest by scoring a
few right answers of each task before it loads the model.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from llm_pipeline.accuracy.task_files import (
    TaskCode,
    TaskDirectory,
    read_task_directory,
    refuse_generated_code,
    task_code,
)
from llm_pipeline.accuracy.task_metrics import refuse_by_file
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.plain_files import read_plain_file
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.catalog.tables import read_table
from llm_pipeline.config.release import Evaluation
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.planning.compatibility import Refused


class TaskItems(Frozen):
    """One task.

    Attributes:
        items: Items that would be asked; None where that is not known.
        output_type: lm-eval's word for what is asked of the model; None where that is not known.
        prompt_tokens: Tokens that an item is read with, roughly; None where nothing is known.
        output_tokens: Tokens that an item is answered with, roughly; None where nothing is known.
    """

    name: str
    items: int | None = None
    output_type: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def is_generative(self) -> bool | None:
        """Whether the model writes the answer; None where that is not known."""
        return None if self.output_type is None else self.output_type == "generate_until"


def task_pool(evaluation: Evaluation, configs_root: Path) -> tuple[TaskItems, ...]:
    """The tasks of an evaluation, `limit` applied.

    Raises:
        ConfigError: A task file or its data are missing or damaged.
    """
    known = known_tasks()
    if evaluation.task_directory is not None:
        directory = configs_root / evaluation.task_directory
        defined = read_task_directory(directory, allow_code=evaluation.allow_task_code)
        known = known | {name: _local(defined, name) for name in evaluation.tasks if name in defined.names}
    return tuple(_limited(known.get(name, TaskItems(name=name)), evaluation.limit) for name in evaluation.tasks)


def _local(defined: TaskDirectory, name: str) -> TaskItems:
    """A task of the directory; of a group or tag, all of its tasks together."""
    known, unknown = defined.reached([name])
    tasks = sorted(known.intersection(defined.tasks))
    counts = [defined.documents(task) for task in tasks]
    kinds = {defined.output_type(task) for task in tasks}
    whole = not unknown and None not in counts
    return TaskItems(
        name=name,
        items=sum(count or 0 for count in counts) if whole else None,
        output_type=kinds.pop() if len(kinds) == 1 and not unknown else None,
    )


@cache
def known_tasks() -> dict[str, TaskItems]:
    """Well-known tasks of lm-eval's own, by name."""
    rows = ({name: value for name, value in row.items() if name != "data"} for row in known_facts()["tasks"])
    return {row["name"]: TaskItems.model_validate(row) for row in rows}


def known_facts() -> dict[str, Any]:
    """What is known of lm-eval's own tasks: sizes, data, modules they need, whether they run what the model writes."""
    return read_table("known_tasks")


def _limited(task: TaskItems, limit: int | None) -> TaskItems:
    if limit is None or task.items is None:
        return task
    return task.model_copy(update={"items": min(task.items, limit)})


_FIRST_WITH_PROMPT_LOGPROBS = "1.3.0rc11"


def judge_task_placement(
    pool: Sequence[TaskItems], served: Sequence[str], targets: Sequence[Target]
) -> tuple[tuple[Refused, ...], tuple[str, ...]]:
    """What is wrong with the tasks that are scored through the endpoint, and what is not known of them."""
    by_name = {task.name: task for task in pool}
    tasks = [by_name[name] for name in served]
    refused = [task for task in tasks if task.is_generative is False]
    generative = [task.name for task in pool if task.is_generative]
    nearest = f"served_tasks: [{', '.join(generative)}]" if generative else "add a generative task to tasks"
    refusals = tuple(
        Refused(
            reason=f"served_tasks: {task.name} is {task.output_type}, which needs probabilities of the prompt's "
            f"tokens; {'; '.join(_why(targets))}",
            nearest=nearest,
        )
        for task in refused
    )
    unknown = [task.name for task in tasks if task.is_generative is None]
    warnings = (f"served_tasks: whether {', '.join(unknown)} are generative is not known here",) if unknown else ()
    return refusals, warnings


def _why(targets: Sequence[Target]) -> Iterator[str]:
    """For each kind of runtime once."""
    yield "the serving endpoint answers in text only"
    runtimes = {
        target.runtime_version
        for target in targets
        if engine_adapter(target.engine).runtime == "tensorrt_llm"
        and target.runtime_version
        and _is_before_prompt_logprobs(target)
    }
    for version in sorted(filter(None, runtimes)):
        yield f"TensorRT-LLM {version} gives none (its LLM API does from {_FIRST_WITH_PROMPT_LOGPROBS} on)"


def _is_before_prompt_logprobs(target: Target) -> bool:
    return release_numbers(target.runtime_version or "") < (1, 3) or _early_candidate(target.runtime_version or "")


def _early_candidate(version: str) -> bool:
    """Whether it is one of 1.3's release candidates before the first with prompt log-probabilities."""
    base, _, number = version.partition("rc")
    digits = number.partition(".")[0]
    first = int(_FIRST_WITH_PROMPT_LOGPROBS.partition("rc")[2])
    return base == "1.3.0" and digits.isdigit() and int(digits) < first


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
    defined = _task_directory(evaluation, configs_root)
    if defined is not None:
        _check_local(defined, evaluation)
    unknown = defined.reached(evaluation.tasks)[1] if defined else set(evaluation.tasks)
    if not evaluation.allow_generated_code:
        refuse_generated_code([name for name in sorted(unknown) if _matches(name, "generated_code")])
    needed = task_modules(evaluation, configs_root)
    return tuple(
        f"{name} needs the Python modules {', '.join(modules)} where models are evaluated: `llm-pipeline doctor` with "
        "this release config looks for them"
        for name, modules in needed.items()
    )


def task_modules(evaluation: Evaluation, configs_root: Path) -> dict[str, tuple[str, ...]]:
    """Modules that tasks import beside lm-eval's own, by task; tasks without any are left out."""
    found: dict[str, tuple[str, ...]] = {}
    defined = _task_directory(evaluation, configs_root)
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


def _task_directory(evaluation: Evaluation, configs_root: Path) -> TaskDirectory | None:
    if evaluation.task_directory is None:
        return None
    return read_task_directory(configs_root / evaluation.task_directory, allow_code=evaluation.allow_task_code)


def _check_local(defined: TaskDirectory, evaluation: Evaluation) -> None:
    known, unknown = defined.reached(evaluation.tasks)
    tasks = sorted(known.intersection(defined.tasks))
    if not unknown and (strange := sorted(evaluation.task_options.keys() - known)):
        raise ConfigError(f"evaluation.task_options names {', '.join(strange)}, which is not one of the tasks")
    for name in tasks:
        configuration = defined.tasks[name].configuration
        options = evaluation.task_options.get(name)
        listed = configuration.get("metric_list")
        # With Python of its own a task may give other values than its metrics' names say.
        if isinstance(listed, list) and next(task_code(configuration), None) is None:
            refuse_by_file(name, list(_metrics(listed)), options.metric if options else None)
    if not evaluation.allow_generated_code:
        refuse_generated_code([name for name in tasks if defined.tasks[name].configuration.get("unsafe_code")])


def _metrics(listed: list[Any]) -> Iterator[tuple[str, str | None]]:
    for entry in listed:
        if isinstance(entry, dict) and isinstance(entry.get("metric"), str):
            aggregation = entry.get("aggregation")
            yield entry["metric"], aggregation if isinstance(aggregation, str) else None


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
        raise ConfigError(f"not valid Python: {error}", where=str(path)) from error
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    own = {file.stem for file in path.parent.glob("*.py")}
    return names - sys.stdlib_module_names - _ALWAYS_THERE - own
