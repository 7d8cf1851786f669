"""What an evaluation leaves on disk: scored items and a summary; whether two of them compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from llm_pipeline.accuracy.task_metrics import TaskMetric
from llm_pipeline.artifacts.items import ScoredItem, write_items
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen

SUMMARY_FILE = "summary.json"
_SHOWN = 16


class TaskSummary(Frozen):
    """One task of an evaluation.

    Attributes:
        items: How many were evaluated.
        accuracy: Mean score of those that have one; None without any.
        cut: Answers that ended by length.
    """

    items: int
    accuracy: float | None
    cut: int = 0


class DataRead(Frozen):
    """Data of the hub that tasks read.

    Attributes:
        name: The data set as tasks name it, with its configuration.
        repository: The repository that it was taken from.
        commit: At which commit.
        files: How many of its files hold them.
        documents: How many documents it has, by split.
    """

    name: str
    repository: str
    commit: str
    files: int
    documents: dict[str, int]


class EvaluationSummary(Frozen):
    """An evaluation at a glance.

    Attributes:
        tasks: By task name.
        seconds: Wall time by phase.
        versions: The harness and what it ran on.
        asked: Items that were asked.
        planned: Items that would have been asked had no look decided earlier.
        look: At which look the gate decided, from 1; None for an evaluation that is no gate's.
        looks: How many looks were planned.
        harness: What must be the same on both sides of a comparison, see `refuse_other_harness`.
        groups: Tasks by the group that was asked for by name; each group is judged as one task.
        tags: Tasks by the tag that was asked for by name; each task is judged by itself.
        metrics: By which metric each task is judged, by task name.
        data: The data of the hub that the tasks read; of tasks that bring their own data there are none.
    """

    tasks: dict[str, TaskSummary]
    seconds: dict[str, float]
    versions: dict[str, str]
    asked: int = 0
    planned: int = 0
    look: int | None = None
    looks: int = 1
    harness: dict[str, str] = Field(default={})
    groups: dict[str, tuple[str, ...]] = Field(default={})
    tags: dict[str, tuple[str, ...]] = Field(default={})
    metrics: dict[str, TaskMetric] = Field(default={})
    data: tuple[DataRead, ...] = ()

    @property
    def named_tasks(self) -> dict[str, tuple[str, ...]]:
        """Tasks by the name of the group or tag that was asked for instead of them."""
        return self.groups | self.tags

    def group_score(self, name: str) -> float | None:
        """A group's mean score over all of its items; None while one of its tasks has none."""
        parts = [self.tasks.get(task) for task in self.groups[name]]
        scores = [(part.accuracy, part.items) for part in parts if part is not None and part.accuracy is not None]
        if not scores or len(scores) < len(parts):
            return None
        return sum(score * items for score, items in scores) / sum(items for _, items in scores)


def summarise(
    items: Sequence[ScoredItem], seconds: Mapping[str, float], versions: Mapping[str, str]
) -> EvaluationSummary:
    """Count and average the items of each task."""
    by_task: dict[str, list[ScoredItem]] = {}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    tasks = {
        task: TaskSummary(items=len(own), accuracy=_mean(own), cut=sum(item.cut for item in own))
        for task, own in sorted(by_task.items())
    }
    return EvaluationSummary(
        tasks=tasks, seconds=dict(seconds), versions=dict(versions), asked=len(items), planned=len(items)
    )


def _mean(items: Sequence[ScoredItem]) -> float | None:
    scores = [item.score for item in items if item.score is not None and not math.isnan(item.score)]
    return sum(scores) / len(scores) if scores else None


def write_evaluation(directory: Path, items: Sequence[ScoredItem], summary: EvaluationSummary) -> None:
    """Write items and summary to `directory`, which is made if needed."""
    directory.mkdir(parents=True, exist_ok=True)
    write_items(directory, items)
    (directory / SUMMARY_FILE).write_text(summary.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_summary(directory: Path) -> EvaluationSummary:
    """Read the summary that `write_evaluation` wrote.

    Raises:
        IntegrityError: It is missing or is not one.
    """
    path = directory / SUMMARY_FILE
    return load_record(EvaluationSummary, path, "no readable summary")


def refuse_other_harness(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> None:
    """Refuse to compare evaluations that were made in different ways.

    Args:
        baseline: The harness of the baseline's evaluation: versions, digests and settings by name.
        candidate: The same of the candidate; what it does not name does not matter to it. The served lane, for one,
            has no tokenizer of its own.

    Raises:
        IntegrityError: Something differs; each of it is named, with both values.
    """
    different = [
        f"{name}: {_short(baseline.get(name))} before, {_short(value)} now"
        for name, value in candidate.items()
        if baseline.get(name) != value
    ]
    if different:
        raise IntegrityError(
            f"not comparable with the baseline: {'; '.join(different)}",
            where="harness of baseline and candidate",
            hint="evaluate both with the same harness, tasks and data; the baseline is computed again when they change",
        )


def _short(value: str | None) -> str:
    return "unknown" if value is None else value[:_SHOWN]
