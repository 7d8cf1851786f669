"""lm-eval's tasks, loaded by lm-eval itself, from data that lie on this machine.

    loaded = load_tasks(task_directory, eval_data, evaluation, ["mmlu", "gsm8k"])
    loaded.tasks["gsm8k"]           # lm-eval's Task, with the number of its examples set
    loaded.selected.groups["mmlu"]  # its 57 tasks, which are judged as one sample

lm-eval's TaskManager reads task files and says what they mean. Each task is then loaded with paths of this machine in
place of the name of its data set: the `eval_data` stage has fetched that, or it lies beside the task's file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from llm_pipeline.accuracy.data_sets import DATA_KEYS, DataCall, call_of_task, held_data_sets, trees_of
from llm_pipeline.accuracy.evaluation import DataRead
from llm_pipeline.accuracy.task_files import read_task_directory
from llm_pipeline.base.errors import ConfigError, PipelineError, unless_io
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.release import CheckpointEvaluation, TaskOptions

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager

log = get_logger(__name__)

_LONGEST = 300


@dataclass(frozen=True)
class LoadedTasks:
    """Tasks as lm-eval loaded them.

    Attributes:
        tasks: By name, sorted; groups and tags are resolved.
        selected: What was known of them before.
        data: The data of the hub that they read.
    """

    tasks: Mapping[str, Task]
    selected: SelectedTasks
    data: tuple[DataRead, ...]


def load_tasks(
    directory: Path | None, data: Path | None, evaluation: CheckpointEvaluation, names: Sequence[str]
) -> LoadedTasks:
    """Load tasks, groups and tags by name, with the data that they read.

    Args:
        directory: Directory with task files; None for lm-eval's own. It is only read, wherever it lies.
        data: What the `eval_data` stage fetched for them; None where they bring all of their data.
        evaluation: How they are asked, and what they may do.
        names: Tasks, groups and tags.

    Raises:
        ConfigError: A task is unknown, its data are unreadable, something that it needs is missing, it runs code that
            it may not, or the release config states what it cannot have.
    """
    return select_tasks(directory, evaluation, names).load(data)


@dataclass(frozen=True)
class SelectedTask:
    """One task before its data are read.

    Attributes:
        name: Its name.
        path: The names through which it was reached, from the one that was asked for down to its own.
        stated: What groups above it say of it.
        configuration: That, over the content of its file and of what the file includes.
        call: What it asks the `datasets` library for; None where Python brings its documents.
    """

    name: str
    path: tuple[str, ...]
    stated: Mapping[str, Any]
    configuration: Mapping[str, Any]
    call: DataCall | None = None


@dataclass(frozen=True)
class SelectedTasks:
    """Tasks that are known by name, and what stands behind the names; their data are not read yet.

    Attributes:
        manager: lm-eval's, which read the task files.
        tasks: By name, sorted; groups and tags are resolved.
        groups: The tasks of each group that was asked for by name: one sample.
        tags: The tasks of each tag that was asked for by name, each of them judged by itself.
        options: What the release config says of each task, by its own name before that of a group or tag that it is in.
    """

    manager: TaskManager
    tasks: Mapping[str, SelectedTask]
    groups: Mapping[str, tuple[str, ...]]
    tags: Mapping[str, tuple[str, ...]]
    options: Mapping[str, TaskOptions]

    def load(self, data: Path | None) -> LoadedTasks:
        """Load them, as in `load_tasks`."""
        import datasets

        datasets.disable_progress_bars()  # a task log has lines, not bars
        held = held_data_sets(data) if data else ()
        loaded: dict[str, Task] = {}
        with TemporaryDirectory(prefix="tasks-") as scratch:
            trees = trees_of(data, held, Path(scratch, "trees")) if data else {}
            for name, task in self.tasks.items():
                call, in_memory = task.call, {"cache_dir": str(Path(scratch, "cache")), "keep_in_memory": True}
                try:
                    loaded[name] = self._loaded(task, {**call.arguments(trees), **in_memory} if call else {})
                except Exception as error:
                    own = f" with {call}" if call else " (its data come from its own Python, without a network)"
                    where = f"task {name} in {self.manager.task_index[name].yaml_path}"
                    raise task_failure(error, f"lm-eval cannot load it{own}", where) from error
        asked = {task.call.data_set for task in self.tasks.values() if task.call}
        reads = tuple(
            DataRead(name=str(one.asked), repository=one.repository, commit=one.commit, files=len(one.files))
            for one in held
            if one.asked in asked
        )
        return LoadedTasks(loaded, self, reads)

    def _loaded(self, task: SelectedTask, data: dict[str, Any]) -> Task:
        """Load one task, and set what the release config states in its configuration, as lm-eval does."""
        name, options = task.name, self.options[task.name]
        data_here = dict(zip(DATA_KEYS, (data.pop("path"), data.pop("name"), data), strict=True)) if data else {}
        # a group of one: what its member states goes over the content of the task's file
        spec = {"group": f"only {name}", "task": [{**task.stated, **data_here, "task": name}]}
        loaded: Task = self.manager.load([spec])["tasks"][name]
        for key in data_here:  # as its file says, for who looks at what was asked
            loaded.set_config(key, task.configuration.get(key))
        if loaded.OUTPUT_TYPE == "loglikelihood_rolling":
            hint = "leave it out, or ask for single answers in a task file of your own"
            raise ConfigError(f"task {name}: a perplexity is no share from 0 to 1 of a single item", hint=hint)
        own = loaded.get_config("num_fewshot")
        if own == 0 and options.num_fewshot:
            hint = f"leave num_fewshot out of evaluation.task_options.{name}"
            raise ConfigError(f"task {name} takes no examples: its file says num_fewshot: 0", hint=hint)
        loaded.set_config("num_fewshot", int(own or 0) if options.num_fewshot is None else options.num_fewshot)
        return loaded


def select_tasks(directory: Path | None, evaluation: CheckpointEvaluation, names: Sequence[str]) -> SelectedTasks:
    """Find out which tasks stand behind some names, and which data they ask for.

    Raises:
        ConfigError: A name is unknown, a file is wrong, tasks are asked twice, or run Python that they may not.
    """
    from lm_eval.tasks import TaskManager

    if directory is not None:
        read_task_directory(directory, allow_code=evaluation.allow_task_code)
    root = directory.resolve() if directory else None
    manager = TaskManager(include_path=root, include_defaults=root is None)
    paths, missing = _leaves(manager, names)
    if missing and root is not None:
        manager = TaskManager(include_path=root)
        paths, missing = _leaves(manager, names)
    if missing:
        problem = f"no task {', '.join(missing)}, neither in the task directory nor in lm-eval"
        raise ConfigError(problem, where=str(directory or ""), hint="`lm-eval ls tasks` names all of lm-eval's")
    tasks: dict[str, SelectedTask] = {}
    for leaf in paths:
        other = tasks.setdefault(leaf.name, leaf)
        asked = {leaf.path[0], other.path[0]}
        if leaf.stated != other.stated or (len(asked) > 1 and asked.intersection(manager.all_groups)):
            problem = f"task {leaf.name} is asked twice: as part of {other.path[0]}, and of {leaf.path[0]}"
            raise ConfigError(problem, where="evaluation.tasks", hint="name one of them")
    behind = {name: tuple(sorted({leaf.name for leaf in paths if leaf.path[0] == name})) for name in names}
    groups, tags = (
        {name: behind[name] for name in names if name in kind} for kind in (manager.all_groups, manager.all_tags)
    )
    if evaluation.allow_generated_code:
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"  # what the metric itself asks for
    for name, task in sorted(tasks.items()):
        file = manager.task_index[name].yaml_path
        own = root if file and root and file.is_relative_to(root) else None
        call = call_of_task(task.configuration, file or Path(name), own)
        if call is None:
            log.warning("its data come from Python of its own, and are not fetched here", task=name)
        tasks[name] = replace(task, call=call)
    return SelectedTasks(manager, dict(sorted(tasks.items())), groups, tags, _options(evaluation, names, paths))


def _leaves(manager: TaskManager, names: Sequence[str]) -> tuple[list[SelectedTask], list[str]]:
    """The tasks behind some names, as lm-eval's groups and tags have it; and names that are unknown."""
    from lm_eval.config.group import GroupConfig

    index, missing = manager.task_index, dict[str, None]()
    of_groups = {one.name for one in fields(GroupConfig)}

    def below(name: str, path: tuple[str, ...], stated: Mapping[str, Any]) -> Iterator[SelectedTask]:
        entry, path = index.get(name), (*path, name)
        if entry is None:
            missing[name] = None
        elif entry.kind.name == "TAG":
            for task in sorted(entry.tags):
                yield from below(task, path, stated)
        elif entry.kind.name == "GROUP":
            yield from members(entry.cfg or {}, path, stated)
        else:
            yield SelectedTask(name, path, stated, {**(entry.cfg or {}), **stated})

    def members(group: Mapping[str, Any], path: tuple[str, ...], stated: Mapping[str, Any]) -> Iterator[SelectedTask]:
        shared = {**{key: value for key, value in group.items() if key not in of_groups}, **stated}
        listed: Any = group.get("task")
        for member in listed if isinstance(listed, list) else [listed]:
            own = {"task": member} if isinstance(member, str) else member
            if "group" in own and own["group"] not in index:
                yield from members(own, (*path, str(own["group"])), shared)
            else:
                kind = "group" if "group" in own else "task"
                said = {key: value for key, value in own.items() if key != kind}
                yield from below(str(own[kind]), path, {**shared, **said})

    return [leaf for name in names for leaf in below(name, (), {})], list(missing)


def _options(
    evaluation: CheckpointEvaluation, names: Sequence[str], found: Sequence[SelectedTask]
) -> dict[str, TaskOptions]:
    """What the release config says of each task.

    Raises:
        ConfigError: It says something of a task that is not asked.
    """
    known = {name for leaf in found for name in leaf.path}
    if set(names) >= set(evaluation.tasks) and (unknown := sorted(evaluation.task_options.keys() - known)):
        problem = f"task_options names {', '.join(unknown)}, which is not one of the tasks"
        raise ConfigError(problem, where="evaluation", hint=f"the tasks are: {', '.join(sorted(known))}"[:_LONGEST])
    stated: dict[str, dict[str, Any]] = {}
    for leaf in found:
        for name in leaf.path:
            options = evaluation.task_options.get(name, TaskOptions())
            stated.setdefault(leaf.name, {}).update(options.model_dump(exclude_none=True))
    return {name: TaskOptions(**options) for name, options in stated.items()}


def task_failure(error: Exception, what: str, where: str) -> PipelineError:
    """An error of a task's own code, or of the libraries below it, as one that says what to do."""
    if isinstance(error, PipelineError):
        return error
    text = str(error.__cause__ or error)  # `datasets` says why only there
    if "HF_ALLOW_CODE_EVAL" in text or "marked as unsafe" in text:
        hint = "it runs code that the model writes: set evaluation.allow_generated_code: true, or leave it out"
    elif isinstance(error, ImportError):
        hint = "install what it names into the environment that models are evaluated in, or leave the task out"
    elif isinstance(error, OSError) or "offline" in text.lower() or "hub" in text.lower():
        hint = "stages that score work offline: put its metric into the Hugging Face cache, or data beside a task file"
    else:
        hint = "the fault is in the task's files or its data"
    reason = next(iter(text.splitlines()), "")[:_LONGEST]
    problem = ConfigError(f"{what}: {type(error).__name__}: {reason}", where=where, hint=hint)
    # An error without a number is no machine's: offline, `datasets` calls a hub that it may not ask out of reach.
    return unless_io(error, problem) if isinstance(error, OSError) and error.errno is not None else problem
