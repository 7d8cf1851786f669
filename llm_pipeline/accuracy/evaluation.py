"""What an evaluation leaves on disk and in the log: scored items and a summary; whether two of them compare.

lm-eval gives most tasks several metrics, and several readings of an answer (filters). A gate needs one number an item,
from 0 to 1, of which more is better. The release config may name it; else the choice follows what is published: see
`judged_by`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat

from pydantic import Field

from llm_pipeline.artifacts.items import ScoredItem, write_items
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.text_table import underlined
from llm_pipeline.config.release import TaskOptions

SUMMARY_FILE = "summary.json"
_SHOWN = 16
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


class NotFinite(IntegrityError):
    """A model gave a log-likelihood that is not a number: it is broken, and has no score."""


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
    """

    name: str
    repository: str
    commit: str
    files: int


@dataclass(frozen=True)
class Bounds:
    """An estimate between its one-sided bounds, all fractions."""

    estimate: float
    lower: float
    upper: float


class PairedAccuracy(Frozen):
    """One task's (or all tasks') comparison.

    Attributes:
        name: The task or group, or `all tasks`.
        pairs: Items scored on both sides.
        unpaired: Items that one side lacks or has no score for.
        baseline: Mean score of the baseline over the pairs.
        candidate: Mean score of the candidate over the pairs.
        loss: What the candidate scored less, between its bounds. Negative is a gain.
        lost: Items on which the candidate scored less.
        gained: Items on which the candidate scored more.
        clusters: Groups of items that belong together; None when every item stands for itself.
    """

    name: str
    pairs: int
    unpaired: int = 0
    baseline: float | None = None
    candidate: float | None = None
    loss: Bounds | None = None
    lost: int = 0
    gained: int = 0
    clusters: int | None = None

    @property
    def flips(self) -> int:
        """Items whose score changed either way."""
        return self.lost + self.gained


class Comparison(Frozen):
    """Two evaluations compared: pooled and by task.

    Attributes:
        confidence: Confidence of each one-sided bound.
        pooled: All pairs of all tasks together.
        tasks: By task or group, sorted by name.
    """

    confidence: float
    pooled: PairedAccuracy
    tasks: tuple[PairedAccuracy, ...]


class EvaluationSummary(Frozen):
    """An evaluation at a glance.

    Attributes:
        tasks: By task name.
        seconds: Wall time of asking and judging.
        asked: Items that were asked.
        planned: Items that would have been asked had no look decided earlier.
        look: At which look the gate decided, from 1; None for an evaluation that is no gate's.
        looks: How many looks were planned.
        harness: What must be the same on both sides of a comparison, see `refuse_other_harness`.
        groups: Tasks by the group that was asked for by name; each group is judged as one task.
        tags: Tasks by the tag that was asked for by name; each task is judged by itself.
        metrics: By which metric each task is judged, by task name.
        data: The data of the hub that the tasks read; of tasks that bring their own data there are none.
        comparison: With the baseline, between the bounds that the gate decided by; None of a baseline, and of a model
            that is broken.
    """

    tasks: dict[str, TaskSummary]
    seconds: float = 0.0
    asked: int = 0
    planned: int = 0
    look: int | None = None
    looks: int = 1
    harness: dict[str, str] = Field(default={})
    groups: dict[str, tuple[str, ...]] = Field(default={})
    tags: dict[str, tuple[str, ...]] = Field(default={})
    metrics: dict[str, TaskMetric] = Field(default={})
    data: tuple[DataRead, ...] = ()
    comparison: Comparison | None = None

    def group_score(self, name: str) -> float | None:
        """A group's mean score over all of its items; None while one of its tasks has none."""
        parts = [self.tasks[task] for task in self.groups[name] if task in self.tasks]
        sums = [part.accuracy * part.items for part in parts if part.accuracy is not None]
        return sum(sums) / sum(part.items for part in parts) if len(sums) == len(self.groups[name]) else None


def summarise(items: Sequence[ScoredItem]) -> EvaluationSummary:
    """Count and average the items of each task."""
    tasks = {}
    for task in sorted({item.task for item in items}):
        own = [item for item in items if item.task == task]
        scores = [item.score for item in own if item.score is not None]
        mean = sum(scores) / len(scores) if scores else None
        tasks[task] = TaskSummary(items=len(own), accuracy=mean, cut=sum(item.cut for item in own))
    return EvaluationSummary(tasks=tasks, asked=len(items), planned=len(items))


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
    return load_record(EvaluationSummary, directory / SUMMARY_FILE, "no readable summary")


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
        f"{name}: {baseline.get(name, 'unknown')[:_SHOWN]} before, {value[:_SHOWN]} now"
        for name, value in candidate.items()
        if baseline.get(name) != value
    ]
    if different:
        raise IntegrityError(
            f"not comparable with the baseline: {'; '.join(different)}",
            where="harness of baseline and candidate",
            hint="evaluate both with the same harness, tasks and data; the baseline is computed again when they change",
        )


_SCORES = ("task", "items", "score", "cut", "metric", "filter", "examples", "prompts")


def format_evaluation(summary: EvaluationSummary) -> str:
    """Items, score and how it came about, one line a task, with groups; starts with a line break."""
    rows = []
    for task, own in summary.tasks.items():
        counts = (task, str(own.items), _percent(own.accuracy), str(own.cut))
        how = summary.metrics.get(task)
        prompts = "chat" if how and how.chat_template else "text"
        rows.append((*counts, *((how.metric, how.filter, str(how.few_shots), prompts) if how else "----")))
    lines = underlined(_SCORES, rows, right=range(1, len(_SCORES)))
    for name, tasks in summary.groups.items():
        lines.append(f"{name}: {_percent(summary.group_score(name))}, {len(tasks)} tasks judged as one")
    for read in summary.data:
        lines.append(f"data of {read.name}: {read.repository} at {read.commit[:12]}, {read.files} files")
    return "\n".join(["", *lines])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"
