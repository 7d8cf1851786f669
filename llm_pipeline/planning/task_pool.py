"""What is known of the tasks of a release before anything runs: how many items they have, and of which kind.

Local task files are read (their data are counted); of lm-eval's own tasks a table holds the well-known ones.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from llm_pipeline.accuracy.task_files import TaskDirectory, read_task_directory
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.release import Evaluation


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


@cache
def known_facts() -> dict[str, Any]:
    """What is known of lm-eval's own tasks: sizes, data, modules they need, whether they run what the model writes."""
    text = files("llm_pipeline.catalog").joinpath("data", "known_tasks.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


def _limited(task: TaskItems, limit: int | None) -> TaskItems:
    if limit is None or task.items is None:
        return task
    return task.model_copy(update={"items": min(task.items, limit)})
