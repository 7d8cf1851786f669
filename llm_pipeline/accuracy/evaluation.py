"""What an evaluation leaves on disk: scored items and a summary; whether two of them compare, and on which scale.

    scoring = Scoring.of(read_summary(baseline_dir))
    pairs = pair_items(baseline, candidate, scoring=scoring)

Scores with known bounds become shares of their range, and losses of that range: a margin of one point is a hundredth
of it. Scores without bounds (bits a byte, a translation's error rate) are taken by their baseline's mean, so that a
margin of one point is one per cent of it. Either way more is better, and the candidate's loss is what it has less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from llm_pipeline.accuracy.task_metrics import TaskMetric
from llm_pipeline.artifacts.items import ScoredItem, write_items
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen

SUMMARY_FILE = "summary.json"
_SHOWN = 16


class TaskGroup(Frozen):
    """A group that an evaluation asked for by name: one score, and its tasks are information.

    Attributes:
        name: What the release config calls it.
        tasks: Its tasks, those of groups inside of it included, sorted.
        weighting: `items` counts every document alike (lm-eval's `weight_by_size: true`); `tasks` takes the mean of
            the tasks' means.
    """

    name: str
    tasks: tuple[str, ...]
    weighting: Literal["items", "tasks"] = "items"


class TaskSummary(Frozen):
    """One task of an evaluation.

    Attributes:
        items: How many were evaluated.
        accuracy: Mean score of those that have one; None without any.
    """

    items: int
    accuracy: float | None


class Divergence(Frozen):
    """How far the candidate's distribution of the next token is from the baseline's, on the same texts.

    Attributes:
        tokens: Positions compared.
        kl_at_least: Mean Kullback-Leibler divergence in nats a token, from baseline to candidate; a lower bound, since
            all but the baseline's 64 likeliest tokens count as one. None when the candidate's numbers are not finite.
        top_token_agreement: Share of positions with the same likeliest token.
        perplexity: The candidate's, of the texts.
    """

    tokens: int
    kl_at_least: float | None
    top_token_agreement: float | None
    perplexity: float | None


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
        scoring: How log-likelihoods were computed, and why not with shared prefixes if they were not.
        perplexity: Of the divergence's texts.
        divergence: Distance from the baseline; of a candidate only.
        groups: The groups that were asked for by name, each judged as one task.
        tags: Tasks by the label that was asked for instead of them; each is judged by itself.
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
    scoring: str = ""
    perplexity: float | None = None
    divergence: Divergence | None = None
    groups: tuple[TaskGroup, ...] = ()
    tags: dict[str, tuple[str, ...]] = Field(default={})
    metrics: dict[str, TaskMetric] = Field(default={})
    data: tuple[DataRead, ...] = ()

    @property
    def named_tasks(self) -> dict[str, tuple[str, ...]]:
        """Tasks by the name of the group or label that was asked for instead of them."""
        return {group.name: group.tasks for group in self.groups} | self.tags

    def group_score(self, group: TaskGroup) -> float | None:
        """A group's score, as lm-eval aggregates it; None while one of its tasks has none."""
        parts = [self.tasks[task] for task in group.tasks if task in self.tasks]
        weights = [float(part.items if group.weighting == "items" else 1) for part in parts]
        scores = [part.accuracy for part in parts if part.accuracy is not None]
        if not scores or len(scores) < len(group.tasks):
            return None
        return sum(score * weight for score, weight in zip(scores, weights, strict=True)) / sum(weights)


def summarise(
    items: Sequence[ScoredItem], seconds: Mapping[str, float], versions: Mapping[str, str]
) -> EvaluationSummary:
    """Count and average the items of each task."""
    by_task: dict[str, list[ScoredItem]] = {}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    tasks = {task: TaskSummary(items=len(own), accuracy=_mean(own)) for task, own in sorted(by_task.items())}
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


_SHARE = TaskMetric(metric="score", minimum=0.0, maximum=1.0)


@dataclass(frozen=True)
class ScoreScale:
    """The scale of one task's scores.

    Attributes:
        origin: The score that becomes 0.
        unit: Score by share; negative where less is better.
        bounded: Shares are from 0 to 1.
    """

    origin: float = 0.0
    unit: float = 1.0
    bounded: bool = True

    def share(self, score: float) -> float:
        """A score as a share, of which more is better."""
        return (score - self.origin) / self.unit

    def score(self, share: float) -> float:
        """The score that has this share."""
        return self.origin + share * self.unit

    @property
    def largest_loss(self) -> float:
        """The most that an item can lose, as a share."""
        return 1.0 if self.bounded else math.inf


SHARES = ScoreScale()
"""Scores that are shares already."""


@dataclass(frozen=True)
class Scoring:
    """What is known of the scores of an evaluation.

    Attributes:
        groups: Tasks that are judged as one.
        metrics: By task; a task without one has scores from 0 to 1.
    """

    groups: tuple[TaskGroup, ...] = ()
    metrics: Mapping[str, TaskMetric] = field(default_factory=dict)

    @classmethod
    def of(cls, summary: EvaluationSummary) -> Scoring:
        """As an evaluation says of itself."""
        return cls(summary.groups, summary.metrics)

    def scale(self, task: str, baseline: Sequence[float]) -> ScoreScale:
        """The scale of a task's scores, by the baseline's where its metric has no bounds."""
        metric = self.metrics.get(task, _SHARE)
        low, high = metric.minimum, metric.maximum
        if low is not None and high is not None:
            better = metric.higher_is_better
            return ScoreScale(low if better else high, high - low if better else low - high)
        mean = abs(math.fsum(baseline) / len(baseline)) if baseline else 1.0
        return ScoreScale(0.0, (mean or 1.0) * (1.0 if metric.higher_is_better else -1.0), bounded=False)

    def refuse_other_scale(self, task: str, item: int, score: float, side: str) -> None:
        """Refuse a score outside of its metric's bounds.

        Raises:
            IntegrityError: It is outside.
        """
        metric = self.metrics.get(task, _SHARE)
        low = -math.inf if metric.minimum is None else metric.minimum
        high = math.inf if metric.maximum is None else metric.maximum
        if not low <= score <= high or math.isinf(score):
            raise IntegrityError(
                f"item {item} of task {task} scored {score}, outside {low:g} to {high:g}",
                where=f"{side} evaluation",
                hint="evaluate again, by a metric of the task whose bounds are known",
            )


PLAIN = Scoring()
"""Scores from 0 to 1, and every task by itself."""
