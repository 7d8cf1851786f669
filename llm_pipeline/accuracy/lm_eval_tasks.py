"""lm-eval's tasks from a directory of task files, without a network and without a cache, and how each is prompted."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.accuracy.chat_template import ChatTemplate
from llm_pipeline.accuracy.dataset_calls import SPLIT_FIELDS
from llm_pipeline.accuracy.eval_data import read_from
from llm_pipeline.accuracy.evaluation import DataRead, TaskGroup
from llm_pipeline.accuracy.task_data import data_files, inside, read_documents
from llm_pipeline.accuracy.task_files import (
    TaskCode,
    TaskDirectory,
    TaskFile,
    read_task_directory,
    refuse_generated_code,
)
from llm_pipeline.accuracy.task_metrics import TaskMetric
from llm_pipeline.base.errors import ConfigError, PipelineError, unless_io
from llm_pipeline.config.release import CheckpointEvaluation, TaskOptions

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

_LONGEST_REASON = 300


def task_manager(directory: Path | None, evaluation: CheckpointEvaluation, names: Sequence[str]) -> TaskManager:
    """lm-eval's task manager, over its own tasks or over a directory of task files.

    The files are read by `task_files` and the data by `task_data`, so the directory works wherever it lies, need not be
    writable and leaves nothing in a dataset cache. What they mean (groups, tags, overrides) is lm-eval's.

    Args:
        directory: Directory with task files; None for the tasks that come with lm-eval.
        evaluation: What tasks may do.
        names: What will be loaded. lm-eval's own tasks are there too when the directory lacks one of these.

    Raises:
        ConfigError: A name is unknown, a file is wrong, or a task runs code that it may not.
    """
    from lm_eval.tasks import TaskManager

    if directory is None:
        manager = TaskManager()
        if missing := sorted(set(names) - set(manager.all_tasks)):
            raise ConfigError(f"lm-eval has no task {', '.join(missing)}", hint="`lm-eval ls tasks` names all of them")
        found = {name: manager.task_index[name].cfg or {} for name in names}
        _permit_generated_code(found, evaluation)
        return manager
    logging.getLogger("lm_eval.api.task").addFilter(_is_about_this_task)
    defined = read_task_directory(directory, allow_code=evaluation.allow_task_code)
    known, unknown = defined.reached(names)
    reached = {name: defined.tasks[name].configuration for name in sorted(known.intersection(defined.tasks))}
    _permit_generated_code(reached, evaluation)
    manager = TaskManager(include_defaults=bool(unknown))
    manager._index.update(_entries(defined, known))  # noqa: SLF001
    manager._all_tasks = sorted(manager.task_index)  # noqa: SLF001
    manager._all_tags = sorted({*manager.all_tags, *known.intersection(defined.tags)})  # noqa: SLF001
    if missing := sorted(unknown.difference(manager.all_tasks)):
        raise ConfigError(
            f"no task {', '.join(missing)}, neither here nor in lm-eval",
            where=str(directory),
            hint=f"the directory has: {', '.join(defined.names)}"[:_LONGEST_REASON],
        )
    return manager


def _entries(defined: TaskDirectory, known: set[str]) -> dict[str, Any]:
    """What some names of a directory are, as lm-eval keeps it."""
    from lm_eval.tasks._index import Entry, Kind

    entries: dict[str, Any] = {}
    for name in sorted(known):
        if name in defined.tasks:
            configuration = _with_code(defined.root, _with_data(defined.root, defined.tasks[name]))
            kind = Kind.PY_TASK if "class" in configuration else Kind.TASK
            entries[name] = Entry(name=name, kind=kind, yaml_path=None, cfg=configuration)
        elif name in defined.groups:
            configuration = _with_code(defined.root, dict(defined.groups[name].configuration))
            entries[name] = Entry(name=name, kind=Kind.GROUP, yaml_path=None, cfg=configuration)
        else:
            entries[name] = Entry(name=name, kind=Kind.TAG, yaml_path=None, tags=set(defined.tags[name]))
    return entries


@dataclass(frozen=True)
class LoadedTasks:
    """Tasks as lm-eval loaded them.

    Attributes:
        tasks: By name, sorted; groups and labels are resolved.
        groups: lm-eval's groups that were asked for, by name, those inside of others too.
        labels: The tasks of each tag that was asked for.
        asked: The names that were asked for.
        data: The data of the hub that they read.
    """

    tasks: Mapping[str, Any]
    groups: Mapping[str, Any]
    labels: Mapping[str, tuple[str, ...]]
    asked: tuple[str, ...]
    data: tuple[DataRead, ...] = ()

    def groups_of(self, task: str) -> list[Any]:
        """The groups that a task is in, the innermost first."""
        return sorted(
            (group for group in self.groups.values() if task in _names(group)),
            key=lambda group: (len(_names(group)), group.name),
        )

    def judged(self, metrics: Mapping[str, TaskMetric]) -> tuple[tuple[TaskGroup, ...], dict[str, tuple[str, ...]]]:
        """The tasks behind each name that is not a task's own; `metrics` says by which each task is judged.

        Returns:
            Groups that lm-eval gives one score to, and the tasks of each mere label: of a tag, and of a group without
            an aggregated metric that all of its tasks have, whose own subgroups may have one.
        """
        found: dict[str, TaskGroup] = {}
        labels = dict(self.labels)
        for name in self.asked:
            if name in self.groups:
                found |= {group.name: group for group in _scored_groups(self.groups[name], metrics)}
                if name not in found:
                    labels[name] = _names(self.groups[name])
        return tuple(found[name] for name in sorted(found)), labels


def load_tasks(
    directory: Path | None, evaluation: CheckpointEvaluation, names: Sequence[str], data: Path | None = None
) -> LoadedTasks:
    """Load tasks, groups and tags by name, with the data that they read.

    Args:
        directory: Directory with task files; None for the tasks that come with lm-eval.
        evaluation: What tasks may do.
        names: Tasks, groups and tags.
        data: What the `eval_data` stage fetched for them; None leaves it to the cache of the `datasets` library.

    Raises:
        ConfigError: A task is unknown, its data are unreadable, something that it needs is missing, or it runs code
            that it may not.
    """
    manager = task_manager(directory, evaluation, names)
    with read_from(data) as fetched:
        try:
            loaded = manager.load(list(names))
        except PipelineError:
            raise
        except Exception as error:
            raise task_failure(error, "lm-eval cannot load its tasks", ", ".join(names)) from error
    labels = {name: tuple(sorted(manager.task_index[name].tags)) for name in names if name in manager.all_tags}
    reads = tuple(fetched.reads.values()) if fetched else ()
    return LoadedTasks(dict(sorted(loaded["tasks"].items())), loaded["groups"], labels, tuple(names), reads)


def _permit_generated_code(configurations: Mapping[str, Mapping[str, Any]], evaluation: CheckpointEvaluation) -> None:
    if evaluation.allow_generated_code:
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"  # what the metric itself asks for
        return
    os.environ.pop("HF_ALLOW_CODE_EVAL", None)
    refuse_generated_code([name for name, configuration in configurations.items() if configuration.get("unsafe_code")])


def task_failure(error: Exception, what: str, where: str) -> PipelineError:
    """An error of a task's own code, or of the libraries below it, as one that says what to do."""
    if isinstance(error, PipelineError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name:
        return ConfigError(
            f"{what}: the Python package of module {error.name} is missing",
            where=where,
            hint="install it into the environment that models are evaluated in, or leave the task out",
        )
    reason = next(iter(str(error).splitlines()), "")[:_LONGEST_REASON]
    problem = ConfigError(f"{what}: {type(error).__name__}: {reason}", where=where, hint=_advice(error))
    # An error without a number is no machine's: offline, `datasets` calls a hub that it may not ask out of reach.
    return unless_io(error, problem) if isinstance(error, OSError) and error.errno is not None else problem


def _advice(error: Exception) -> str:
    text = str(error)
    if "HF_ALLOW_CODE_EVAL" in text:
        return "it runs code that the model writes: set evaluation.allow_generated_code: true, or leave it out"
    if isinstance(error, ImportError):
        return "install what it names into the environment that models are evaluated in, or leave the task out"
    if isinstance(error, OSError) or "offline" in text.lower() or "hub" in text.lower():
        return "stages that score work offline: put its metric into the Hugging Face cache, or data beside a task file"
    return "the fault is in the task's files or its data"


def _names(group: Any) -> tuple[str, ...]:
    return tuple(sorted(task.task_name for task in group.get_all_tasks()))


def _scored_groups(group: Any, metrics: Mapping[str, TaskMetric]) -> list[TaskGroup]:
    """The group itself where lm-eval aggregates it, or else those inside of it."""
    names = _names(group)
    measured = {(metrics[name].metric, metrics[name].higher_is_better) for name in names}
    if not group.has_aggregation or len(measured) != 1:
        return [one for inner in group.get_all_groups(recursive=False) for one in _scored_groups(inner, metrics)]
    entries = group.aggregate_metric_list
    entry = next((one for one in entries if one.metric == next(iter(measured))[0]), entries[0])
    return [TaskGroup(name=group.name, tasks=names, weighting="items" if entry.weight_by_size else "tasks")]


def _is_about_this_task(record: logging.LogRecord) -> bool:
    """False for the advice that lm-eval gives whenever a task's data come from a function."""
    return "Custom kwargs can be passed" not in record.getMessage()


def _with_data(root: Path, task: TaskFile) -> dict[str, Any]:
    """A task's configuration with its documents in place of the names of their files."""
    files = data_files(root, task.path, task.configuration)
    if files is None:
        return dict(task.configuration)
    wanted = {key: task.configuration.get(key) for key in SPLIT_FIELDS}
    if missing := {key: split for key, split in wanted.items() if split is not None and split not in files}:
        stated = ", ".join(f"{key}: {split}" for key, split in missing.items())
        raise ConfigError(f"its data have no such split ({stated}), only {', '.join(files)}", where=str(task.path))
    documents = read_documents(task.configuration, files)
    kept = {key: value for key, value in task.configuration.items() if key not in ("dataset_path", "dataset_kwargs")}
    return {**kept, "custom_dataset": lambda **_: documents}


def _with_code(root: Path, value: Any) -> Any:
    """A configuration with functions in place of their names."""
    if isinstance(value, dict):
        return {key: _with_code(root, one) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_code(root, one) for one in value]
    if not isinstance(value, TaskCode):
        return value
    from lm_eval.tasks._yaml_loader import _import_func_in_yml

    module = value.reference.rpartition(".")[0]
    where = f"!function {value.reference}"
    inside(root, value.directory / f"{module.replace('.', '/')}.py", f"the module {module!r}", value.directory)
    try:
        return _import_func_in_yml(value.reference, value.directory)
    except Exception as error:
        raise task_failure(error, "a task's own Python cannot be loaded", where) from error


@dataclass(frozen=True)
class PromptStyle:
    """How the prompts of one task are made.

    Attributes:
        few_shots: Solved examples in each prompt.
        chat: The chat format; None for plain text.
    """

    few_shots: int
    chat: ChatTemplate | None

    @property
    def request_options(self) -> dict[str, Any]:
        """The same for lm-eval's `build_all_requests`."""
        if self.chat is None:
            return {}
        return {"apply_chat_template": True, "fewshot_as_multiturn": True, "chat_template": self.chat.render}


def prompt_style(
    name: str, task: Any, loaded: LoadedTasks, evaluation: CheckpointEvaluation, chat: ChatTemplate | None
) -> PromptStyle:
    """How a task is asked; the number of its examples is set in lm-eval's task.

    Raises:
        ConfigError: The task fixes its examples, or the model lacks the chat format that is asked for.
    """
    wanted = evaluation.chat_template
    if wanted is True and chat is None:
        raise ConfigError(
            "the checkpoint's tokenizer has no chat template",
            where=f"task {name}",
            hint="set evaluation.chat_template to false, or to auto",
        )
    used = chat if wanted is True or (wanted == "auto" and task.OUTPUT_TYPE == "generate_until") else None
    return PromptStyle(few_shots=_few_shots(name, task, options_of(name, loaded, evaluation).num_fewshot), chat=used)


def options_of(task: str, loaded: LoadedTasks, evaluation: CheckpointEvaluation) -> TaskOptions:
    """What the release config says of a task, by its own name before that of a group or tag that it is in."""
    outer = [group.name for group in reversed(loaded.groups_of(task))]
    tags = [name for name, tasks in loaded.labels.items() if task in tasks]
    stated: dict[str, Any] = {}
    for name in (*tags, *outer, task):
        if name in evaluation.task_options:
            stated |= evaluation.task_options[name].model_dump(exclude_none=True)
    return TaskOptions(**stated)


def _few_shots(name: str, task: Any, wanted: int | None) -> int:
    own = task.get_config("num_fewshot")
    if own == 0 and wanted:
        raise ConfigError(
            f"task {name} takes no examples: its file says num_fewshot: 0",
            hint=f"leave evaluation.task_options.{name}.num_fewshot out",
        )
    number = int(own or 0) if wanted is None else wanted
    task.set_config(key="num_fewshot", value=number)
    return number
