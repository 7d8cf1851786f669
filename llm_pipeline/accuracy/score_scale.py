"""How the scores of items become losses: on which scale, in which direction, and which tasks are one.

    scoring = Scoring.of(read_summary(baseline_dir))
    pairs = pair_items(baseline, candidate, scoring=scoring)

Scores with known bounds become shares of their range, and losses of that range: a margin of one point is a hundredth
of it. Scores without bounds (bits a byte, a translation's error rate) are taken by their baseline's mean, so that a
margin of one point is one per cent of it. Either way more is better, and the candidate's loss is what it has less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from llm_pipeline.accuracy.evaluation import EvaluationSummary, TaskGroup
from llm_pipeline.accuracy.task_metrics import TaskMetric
from llm_pipeline.base.errors import IntegrityError

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

    def is_bounded(self, tasks: Iterable[str]) -> bool:
        """Whether the scores of all these tasks have bounds."""
        metrics = [self.metrics.get(task, _SHARE) for task in tasks]
        return all(one.minimum is not None and one.maximum is not None for one in metrics)

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
