"""By which of its metrics a task is judged.

lm-eval gives most tasks several metrics, and several readings of an answer (filters). A gate needs one number an item,
from 0 to 1, of which more is better. The release config may name it; else the choice follows what is published: see
`judged_by`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.release import TaskOptions

FIELD: Mapping[str, str] = {"coqa": "f1", "drop": "f1", "truthfulqa_gen": "bleu_acc"}
"""Metric of tasks whose published score is not the first of their file."""
FILTERS: Mapping[str, str] = {"gsm8k": "flexible-extract", "gsm8k_cot": "flexible-extract"}
"""GSM8K by the last number of the answer: the strict reading wants `#### 18`, which chat models often leave out."""


class TaskMetric(Frozen):
    """How a task is asked, and what the score of its items is.

    Attributes:
        metric: lm-eval's name of it: `acc`, `acc_norm`, `exact_match`.
        filter: lm-eval's name of the reading of an answer that is scored; `none` where there is only one.
        few_shots: Solved examples in each prompt.
        chat_template: The prompts are in the model's chat format.
    """

    metric: str
    filter: str = "none"
    few_shots: int = 0
    chat_template: bool = False


def judged_by(
    task: str, answered: Sequence[Mapping[str, Any]], higher_is_better: Mapping[str, bool], options: TaskOptions
) -> tuple[str, str]:
    """The metric and the filter that a task is judged by.

    Args:
        task: Its name.
        answered: lm-eval's samples of some of its documents, with all metrics and filters.
        higher_is_better: By metric.
        options: What the release config names.

    Raises:
        ConfigError: The task lacks what is named, or has no metric that is a share of an item.
    """
    filters = list(dict.fromkeys(str(one["filter"]) for one in answered))
    kept = options.filter or FILTERS.get(task, filters[0])
    if kept not in filters:
        raise ConfigError(f"task {task} has no filter {kept!r}", hint=f"it has: {', '.join(filters)}")
    values = [one for one in answered if one["filter"] == kept]
    names = [str(name) for name in values[0]["metrics"]]
    usable = [
        name
        for name in names
        if higher_is_better.get(name, True) and all(share_of(one.get(name)) is not None for one in values)
    ]
    wanted = options.metric
    if not usable or (wanted is not None and wanted not in usable):
        other = "leave it out, or give it a metric of single documents (acc, exact_match) in a task file of your own"
        raise ConfigError(
            f"task {task}: {wanted or ', '.join(names) or 'no metric'} is no share from 0 to 1 of a single item",
            hint=f"set evaluation.task_options.{task}.metric to one of: {', '.join(usable)}" if usable else other,
        )
    better = "acc_norm" if usable[0] == "acc" and "acc_norm" in usable else usable[0]
    usual = FIELD.get(task, better)
    return wanted or (usual if usual in usable else better), kept


def share_of(value: Any) -> float | None:
    """An item's value of a metric as a share from 0 to 1; None where it is none."""
    number = float(value) if isinstance(value, SupportsFloat) else -1.0
    return number if 0.0 <= number <= 1.0 else None
