"""Paired comparison of two evaluations, item by item: what was lost, what was gained, and how sure that is.

Items are paired on task and number; their fingerprints must agree, for only then are they the same question. A group
of tasks that was asked for by its name is one task, scored as lm-eval scores it. The pooled comparison, and that of a
group, treats all pairs as one sample: its bound is a little wide when tasks differ, never too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.accuracy.evaluation import PLAIN, SHARES, ScoreScale, Scoring
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import Frozen
from llm_pipeline.statistics.intervals import Bounds, mean_bounds
from llm_pipeline.statistics.losses import LossSample, group_numbers
from llm_pipeline.statistics.score_test import SCORE_TEST

POOLED = "all tasks"


class PairedAccuracy(Frozen):
    """One task's (or all tasks') comparison.

    Attributes:
        name: The task or group, or `POOLED`.
        pairs: Items scored on both sides.
        unpaired: Items that one side lacks or has no score for.
        baseline: Mean score of the baseline over the pairs, as a share of the best; where scores have no bounds, as is.
        candidate: Mean score of the candidate over the pairs, on the same scale.
        bounded: Scores have bounds.
        loss: What the candidate scored less, as a share of the range of scores; of the baseline's mean where they have
            no bounds. Negative is a gain.
        variance: Variance of one item's loss, inflated by what its likeness to its cluster costs.
        lost: Items on which the candidate scored less.
        gained: Items on which the candidate scored more.
        clusters: Groups of items that belong together; None when every item stands for itself.
        parts: Of a group, its tasks; none of them is judged by itself.
    """

    name: str
    pairs: int
    unpaired: int = 0
    baseline: Bounds | None = None
    candidate: Bounds | None = None
    bounded: bool = True
    loss: Bounds | None = None
    variance: float = 0.0
    lost: int = 0
    gained: int = 0
    clusters: int | None = None
    parts: tuple[PairedAccuracy, ...] = ()

    @property
    def flips(self) -> int:
        """Items whose score changed either way."""
        return self.lost + self.gained


class Comparison(Frozen):
    """Two evaluations compared: pooled and by task.

    Attributes:
        confidence: Confidence of each one-sided bound; at a look, of the upper ones.
        pooled: All pairs of all tasks together.
        tasks: By task or group, sorted by name.
    """

    confidence: float
    pooled: PairedAccuracy
    tasks: tuple[PairedAccuracy, ...]


@dataclass(frozen=True)
class TaskPairs:
    """The items of one task or group (or of all) that are scored on both sides.

    Attributes:
        name: The task or group, or `POOLED`.
        scores: Baseline's and candidate's score of each pair, as shares of which more is better.
        clusters: The cluster of each pair, as named by the task; empty for none.
        unpaired: Items that one side lacks or has no score for.
        scale: What made shares of the scores.
        parts: Of a group, its tasks.
        by_task: Each task of the group counts alike, however many items it has.
    """

    name: str
    scores: tuple[tuple[float, float], ...]
    clusters: tuple[str, ...]
    unpaired: int
    scale: ScoreScale = SHARES
    parts: tuple[TaskPairs, ...] = ()
    by_task: bool = False

    @cached_property
    def columns(self) -> NDArray[np.float64]:
        """The scores as an array, shape (pairs, 2)."""
        return np.asarray(self.scores, dtype=float).reshape(-1, 2)

    @cached_property
    def weights(self) -> NDArray[np.float64] | None:
        """What each pair counts, 1 on average; None for all alike."""
        sizes = [len(part.scores) for part in self.parts]
        if not self.by_task or len(set(sizes)) <= 1:
            return None
        return np.concatenate([np.full(size, sum(sizes) / len(sizes) / size) for size in sizes])

    @cached_property
    def sample(self) -> LossSample:
        """The losses, for a test."""
        scores = self.columns
        graded = not bool(np.isin(scores, (0.0, 1.0)).all())
        losses = scores[:, 0] - scores[:, 1]
        return LossSample(losses, group_numbers(self.clusters), graded, self.scale.largest_loss, self.weights)


def compare(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    confidence: float,
    tasks: Iterable[str] | None = None,
    asked: Collection[tuple[str, int]] | None = None,
    *,
    scoring: Scoring = PLAIN,
) -> Comparison:
    """Pair two evaluations and bound the loss.

    Args:
        baseline: Items of the unquantized model.
        candidate: Items of the model that is judged.
        confidence: Confidence of each one-sided bound.
        tasks: Tasks to compare; None for every task that either side has.
        asked: Task and number of the items that the candidate was asked; None for all of the baseline's.
        scoring: Scales of the scores, and groups of tasks.

    Raises:
        IntegrityError: An item occurs twice, asks another question than its partner, has a score outside the bounds of
            its metric, or was not asked.
    """
    return bound_losses(pair_items(baseline, candidate, tasks, asked, scoring), confidence, confidence)


def pair_items(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    tasks: Iterable[str] | None = None,
    asked: Collection[tuple[str, int]] | None = None,
    scoring: Scoring = PLAIN,
) -> tuple[TaskPairs, ...]:
    """Pair two evaluations, task by task (or group by group), sorted by name.

    A baseline's item that was not asked of the candidate is left out; one that was asked and is missing on either
    side, or has no score, is unpaired. A task of which nothing was asked stays, without pairs.

    Raises:
        IntegrityError: As `compare`.
    """
    before, after = _by_task(baseline, "baseline", scoring), _by_task(candidate, "candidate", scoring)
    names = sorted(set(tasks) if tasks is not None else {*before, *after})
    wanted = None if asked is None else _numbers_by_task(asked)
    paired = []
    for name in names:
        own, other = before.get(name, {}), after.get(name, {})
        numbers = {*own, *other} if wanted is None else wanted.get(name, set())
        if strangers := other.keys() - numbers:
            raise IntegrityError(
                f"{len(strangers)} items of task {name} were not asked (first: item {min(strangers)})",
                where="candidate evaluation",
                hint="evaluate again: which items are judged must be fixed before their answers are known",
            )
        _refuse_other_questions(name, own, other)
        scale = scoring.scale(name, [item.score or 0.0 for item in own.values() if _is_scored(item)])
        paired.append(_pair(name, own, other, numbers, scale))
    return _grouped(paired, scoring)


def _grouped(tasks: Sequence[TaskPairs], scoring: Scoring) -> tuple[TaskPairs, ...]:
    """The tasks that are judged: a group stands for its own."""
    judged = {task.name: task for task in tasks}
    for group in scoring.groups:
        if own := [judged.pop(name) for name in group.tasks if name in judged]:
            whole = _joined(group.name, own)
            by_task = group.weighting == "tasks"
            if by_task and not all(part.scores for part in own):  # the mean of tasks lacks one, until it is asked
                whole = replace(whole, scores=(), clusters=())
            judged[group.name] = replace(whole, parts=tuple(own), by_task=by_task)
    return tuple(judged[name] for name in sorted(judged))


def pool(tasks: Sequence[TaskPairs]) -> TaskPairs:
    """All pairs of all tasks as one sample, in which every item counts alike.

    Scores without bounds have no share of a common range: they are left out, unless there are no others.
    """
    single = [part for task in tasks for part in (task.parts or (task,))]
    bounded = [part for part in single if part.scale.bounded]
    whole = _joined(POOLED, bounded or single)
    return replace(whole, unpaired=sum(task.unpaired for task in tasks))


def _joined(name: str, tasks: Sequence[TaskPairs]) -> TaskPairs:
    """The pairs of several tasks as one sample; clusters of two tasks are never the same."""
    bounded = all(task.scale.bounded for task in tasks)
    return TaskPairs(
        name=name,
        scores=tuple(scores for task in tasks for scores in task.scores),
        clusters=tuple(cluster and f"{task.name}\0{cluster}" for task in tasks for cluster in task.clusters),
        unpaired=sum(task.unpaired for task in tasks),
        scale=SHARES if bounded else ScoreScale(bounded=False),
    )


def bound_losses(tasks: Sequence[TaskPairs], confidence: float, lower_confidence: float) -> Comparison:
    """Bound the loss of each task and of all together.

    `confidence` is that of each upper bound, one-sided, and `lower_confidence` that of each lower one.
    """
    levels = confidence, lower_confidence
    return Comparison(
        confidence=confidence,
        pooled=_bounded(pool(tasks), levels),
        tasks=tuple(_bounded(task, levels) for task in tasks),
    )


def _numbers_by_task(asked: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    numbers: dict[str, set[int]] = {}
    for task, number in asked:
        numbers.setdefault(task, set()).add(number)
    return numbers


def _by_task(items: Sequence[ScoredItem], side: str, scoring: Scoring) -> dict[str, dict[int, ScoredItem]]:
    grouped: dict[str, dict[int, ScoredItem]] = {}
    for item in items:
        task = grouped.setdefault(item.task, {})
        if item.item_id in task:
            raise IntegrityError(
                f"item {item.item_id} of task {item.task} occurs twice",
                where=f"{side} evaluation",
                hint="evaluate again: an item counted twice narrows the bound without new evidence",
            )
        if _is_scored(item):
            scoring.refuse_other_scale(item.task, item.item_id, item.score or 0.0, side)
        task[item.item_id] = item
    return grouped


def _refuse_other_questions(task: str, before: Mapping[int, ScoredItem], after: Mapping[int, ScoredItem]) -> None:
    shared = sorted(before.keys() & after.keys())
    if other := [number for number in shared if before[number].fingerprint != after[number].fingerprint]:
        raise IntegrityError(
            f"{len(other)} of {len(shared)} items of task {task} ask different questions (first: item {other[0]})",
            where="baseline and candidate evaluations",
            hint="evaluate both with the same dataset revision, prompt template and few-shot seed",
        )


def _is_scored(item: ScoredItem) -> bool:
    return item.score is not None and not math.isnan(item.score)


def _pair(
    name: str,
    before: Mapping[int, ScoredItem],
    after: Mapping[int, ScoredItem],
    numbers: Collection[int],
    scale: ScoreScale,
) -> TaskPairs:
    shared = sorted(before.keys() & after.keys() & set(numbers))
    both = [(before[number], after[number]) for number in shared]
    scored = [(one, other) for one, other in both if _is_scored(one) and _is_scored(other)]
    return TaskPairs(
        name=name,
        scores=tuple((scale.share(one.score or 0.0), scale.share(other.score or 0.0)) for one, other in scored),
        clusters=tuple(one.cluster for one, _ in scored),
        unpaired=len(numbers) - len(scored),
        scale=scale,
    )


def _bounded(pairs: TaskPairs, levels: tuple[float, float]) -> PairedAccuracy:
    parts = tuple(_bounded(part, levels) for part in pairs.parts)
    if not pairs.scores:
        return PairedAccuracy(name=pairs.name, pairs=0, unpaired=pairs.unpaired, parts=parts)
    sample = pairs.sample
    return PairedAccuracy(
        name=pairs.name,
        pairs=len(pairs.scores),
        unpaired=pairs.unpaired,
        baseline=_side(pairs, 0, levels[0]),
        candidate=_side(pairs, 1, levels[0]),
        bounded=pairs.scale.bounded,
        loss=SCORE_TEST.bounds(sample, *levels),
        variance=sample.variance,
        lost=int(np.count_nonzero(sample.losses > 0)),
        gained=int(np.count_nonzero(sample.losses < 0)),
        clusters=None if sample.groups is None else int(sample.independent),
        parts=parts,
    )


def _side(pairs: TaskPairs, side: int, confidence: float) -> Bounds:
    """Mean score of one side; of a group of unlike tasks, with bounds around its weighted mean."""
    scores, scale = pairs.columns[:, side], pairs.scale
    bounds = mean_bounds(scores.tolist(), confidence, bounded=scale.bounded)
    moved = 0.0 if pairs.weights is None else float((pairs.weights * scores).mean()) - bounds.estimate
    estimate, lower, upper = (edge + moved for edge in (bounds.estimate, bounds.lower, bounds.upper))
    if scale.bounded:
        return Bounds(estimate=estimate, lower=max(0.0, lower), upper=min(1.0, upper))
    lower, upper = sorted((scale.score(lower), scale.score(upper)))
    return Bounds(estimate=scale.score(estimate), lower=lower, upper=upper)
