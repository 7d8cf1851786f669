"""How lm-eval's tasks are prompted, and under which names they are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_pipeline.accuracy import tasks as lm_eval_tasks
from llm_pipeline.accuracy.chat_template import ChatTemplate
from llm_pipeline.accuracy.evaluation import DataRead, TaskGroup
from llm_pipeline.accuracy.task_metrics import TaskMetric
from llm_pipeline.accuracy.tasks import task_failure
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import CheckpointEvaluation, TaskOptions

__all__ = ["LoadedTasks", "PromptStyle", "load_tasks", "options_of", "prompt_style", "task_failure"]


@dataclass(frozen=True)
class LoadedTasks:
    """Tasks as lm-eval loaded them; see `accuracy/tasks.py`."""

    tasks: Mapping[str, Any]
    groups: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, tuple[str, ...]]
    options: Mapping[str, TaskOptions]
    data: tuple[DataRead, ...] = ()

    def groups_of(self, _task: str) -> list[Any]:
        """What groups say of metrics; nothing."""
        return []

    def judged(self, metrics: Mapping[str, TaskMetric]) -> tuple[tuple[TaskGroup, ...], dict[str, tuple[str, ...]]]:
        """Groups that are one sample, as all of their tasks have one metric; and tasks behind mere labels."""
        groups, labels = [], dict(self.labels)
        for name, tasks in sorted(self.groups.items()):
            if len({(metrics[task].metric, metrics[task].higher_is_better) for task in tasks}) == 1:
                groups.append(TaskGroup(name=name, tasks=tasks))
            else:
                labels[name] = tasks
        return tuple(groups), labels


def load_tasks(
    directory: Path | None, evaluation: CheckpointEvaluation, names: Sequence[str], data: Path | None = None
) -> LoadedTasks:
    """Load tasks, groups and tags by name, with the data that they read."""
    loaded = lm_eval_tasks.load_tasks(directory, data, evaluation, names)
    return LoadedTasks(loaded.tasks, loaded.groups, loaded.tags, loaded.options, loaded.data)


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


def prompt_style(name: str, task: Any, evaluation: CheckpointEvaluation, chat: ChatTemplate | None) -> PromptStyle:
    """How a task is asked.

    Raises:
        ConfigError: The model lacks the chat format that is asked for.
    """
    wanted = evaluation.chat_template
    if wanted is True and chat is None:
        raise ConfigError(
            "the checkpoint's tokenizer has no chat template",
            where=f"task {name}",
            hint="set evaluation.chat_template to false, or to auto",
        )
    used = chat if wanted is True or (wanted == "auto" and task.OUTPUT_TYPE == "generate_until") else None
    return PromptStyle(few_shots=int(task.get_config("num_fewshot") or 0), chat=used)


def options_of(task: str, loaded: LoadedTasks) -> TaskOptions:
    """What the release config says of a task."""
    return loaded.options[task]
