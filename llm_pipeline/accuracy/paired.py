"""Paired comparison of two evaluations, item by item: what was lost, what was gained, and how sure that is.

Items are paired on task and number; their fingerprints must agree, for only then are they the same question. The
pooled comparison treats all pairs as one sample: its bound is a little wide when tasks differ, never too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from llm_pipeline.accuracy.intervals import Bounds, graded_bounds, mean_bounds, tango_bounds
from llm_pipeline.accuracy.items import ScoredItem
from llm_pipeline.errors import IntegrityError

POOLED = "all tasks"


class Interval(BaseModel):
    """An estimate between its one-sided confidence bounds, all fractions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    estimate: float
    lower: float
    upper: float


class PairedAccuracy(BaseModel):
    """One task's (or all tasks') comparison.

    Attributes:
        name: The task, or `POOLED`.
        pairs: Items scored on both sides.
        unpaired: Items that one side lacks or has no score for.
        graded: Some score is neither 0 nor 1.
        baseline: Mean score of the baseline over the pairs.
        candidate: Mean score of the candidate over the pairs.
        loss: Baseline minus candidate; negative is a gain.
        variance: Variance of one item's loss.
        lost: Items on which the candidate scored less.
        gained: Items on which the candidate scored more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pairs: int
    unpaired: int = 0
    graded: bool = False
    baseline: Interval | None = None
    candidate: Interval | None = None
    loss: Interval | None = None
    variance: float = 0.0
    lost: int = 0
    gained: int = 0

    @property
    def flips(self) -> int:
        """Items whose score changed either way."""
        return self.lost + self.gained


class Comparison(BaseModel):
    """Two evaluations compared: pooled and by task.

    Attributes:
        confidence: Confidence of each one-sided bound.
        pooled: All pairs of all tasks together.
        tasks: By task, sorted by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    confidence: float
    pooled: PairedAccuracy
    tasks: tuple[PairedAccuracy, ...]


def compare(
    baseline: Sequence[ScoredItem],
    candidate: Sequence[ScoredItem],
    confidence: float,
    tasks: Iterable[str] | None = None,
) -> Comparison:
    """Pair two evaluations and bound the loss.

    Args:
        baseline: Items of the unquantized model.
        candidate: Items of the model that is judged.
        confidence: Confidence of each one-sided bound.
        tasks: Tasks to compare; None for every task that either side has.

    Raises:
        IntegrityError: An item occurs twice, asks another question than its partner, or its score is outside 0 to 1.
    """
    before, after = _by_task(baseline, "baseline"), _by_task(candidate, "candidate")
    names = sorted(set(tasks) if tasks is not None else {*before, *after})
    sides = {name: (before.get(name, {}), after.get(name, {})) for name in names}
    _refuse_other_questions(sides)
    pairs = {name: _pairs(*both) for name, both in sides.items()}
    unpaired = {name: len({*both[0], *both[1]}) - len(pairs[name]) for name, both in sides.items()}
    everything = [pair for name in names for pair in pairs[name]]
    return Comparison(
        confidence=confidence,
        pooled=_summarise(POOLED, everything, sum(unpaired.values()), confidence),
        tasks=tuple(_summarise(name, pairs[name], unpaired[name], confidence) for name in names),
    )


def _by_task(items: Sequence[ScoredItem], side: str) -> dict[str, dict[int, ScoredItem]]:
    grouped: dict[str, dict[int, ScoredItem]] = {}
    for item in items:
        task = grouped.setdefault(item.task, {})
        if item.item_id in task:
            raise IntegrityError(
                f"item {item.item_id} of task {item.task} occurs twice",
                where=f"{side} evaluation",
                hint="evaluate again: an item counted twice narrows the bound without new evidence",
            )
        _refuse_other_scale(item, side)
        task[item.item_id] = item
    return grouped


def _refuse_other_scale(item: ScoredItem, side: str) -> None:
    if _is_scored(item) and not 0.0 <= (item.score or 0.0) <= 1.0:
        raise IntegrityError(
            f"item {item.item_id} of task {item.task} scored {item.score}, outside 0 to 1",
            where=f"{side} evaluation",
            hint="choose a metric of the task that is a fraction",
        )


def _refuse_other_questions(sides: Mapping[str, tuple[Mapping[int, ScoredItem], Mapping[int, ScoredItem]]]) -> None:
    for task, (before, after) in sides.items():
        shared = sorted(before.keys() & after.keys())
        if other := [number for number in shared if before[number].fingerprint != after[number].fingerprint]:
            raise IntegrityError(
                f"{len(other)} of {len(shared)} items of task {task} are other questions (first: item {other[0]})",
                where="baseline and candidate evaluations",
                hint="evaluate both with the same dataset revision, prompt template and few-shot seed",
            )


def _is_scored(item: ScoredItem) -> bool:
    return item.score is not None and not math.isnan(item.score)


def _pairs(before: Mapping[int, ScoredItem], after: Mapping[int, ScoredItem]) -> list[tuple[float, float]]:
    shared = sorted(before.keys() & after.keys())
    both = ((before[number], after[number]) for number in shared)
    return [(a.score or 0.0, b.score or 0.0) for a, b in both if _is_scored(a) and _is_scored(b)]


def _summarise(name: str, pairs: Sequence[tuple[float, float]], unpaired: int, confidence: float) -> PairedAccuracy:
    if not pairs:
        return PairedAccuracy(name=name, pairs=0, unpaired=unpaired)
    scores = np.asarray(pairs, dtype=float)
    losses = scores[:, 0] - scores[:, 1]
    lost, gained = int((losses > 0).sum()), int((losses < 0).sum())
    graded = not bool(np.isin(scores, (0.0, 1.0)).all())
    bounds = (
        graded_bounds(losses.tolist(), confidence) if graded else tango_bounds(lost, gained, len(pairs), confidence)
    )
    return PairedAccuracy(
        name=name,
        pairs=len(pairs),
        unpaired=unpaired,
        graded=graded,
        baseline=_interval(mean_bounds(scores[:, 0].tolist(), confidence)),
        candidate=_interval(mean_bounds(scores[:, 1].tolist(), confidence)),
        loss=_interval(bounds),
        variance=float(losses.var()),
        lost=lost,
        gained=gained,
    )


def _interval(bounds: Bounds) -> Interval:
    return Interval(estimate=bounds.estimate, lower=bounds.lower, upper=bounds.upper)
