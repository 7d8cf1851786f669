"""The gate where its assumptions are hardest: groups of unlike tasks, and graded scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from accuracy_gate_ours import CONFIDENCE, MARGIN, Truth
from numpy.typing import NDArray

from llm_pipeline.accuracy.gate import judge_pairs
from llm_pipeline.accuracy.paired import TaskPairs
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.losses import LossSample
from llm_pipeline.statistics.score_test import SCORE_TEST


def false_verdict_of_group(runs: int, random: np.random.Generator) -> tuple[float, float]:
    """GO and NO_GO of a group by tasks whose mean of means is exactly the margin; small tasks lost most."""
    sizes, losses = (1200, 600, 150, 150), (0.0, 0.0, 0.02, 0.02)
    verdicts = []
    for _ in range(runs):
        parts = tuple(
            _part(n, size, Truth(0.06, loss), random) for n, (size, loss) in enumerate(zip(sizes, losses, strict=True))
        )
        scores = tuple(pair for part in parts for pair in part.scores)
        whole = TaskPairs("group", scores, ("",) * len(scores), 0, parts=parts, by_task=True)
        policy = AccuracyPolicy(margin=0.5, task_margin=MARGIN, minimum_items=500)
        verdicts.append(judge_pairs([whole], policy).verdict)
    return verdicts.count(Verdict.GO) / runs, verdicts.count(Verdict.NO_GO) / runs


def _part(number: int, size: int, truth: Truth, random: np.random.Generator) -> TaskPairs:
    kinds = random.choice(3, size, p=truth.shares)
    told = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    return TaskPairs(f"t{number}", tuple(told[kind] for kind in kinds), ("",) * size, 0)


@dataclass(frozen=True)
class Graded:
    """Losses of scores that are not right or wrong, of which the mean is the margin.

    Attributes:
        name: What they are like.
        draw: Losses, given a generator, evaluations and items.
        largest: The most that an item can lose.
    """

    name: str
    draw: Callable[[np.random.Generator, int, int], NDArray[np.float64]]
    largest: float = 1.0


GRADED: Sequence[Graded] = (
    Graded("smooth", lambda random, runs, items: random.normal(MARGIN, 0.1, (runs, items)).clip(-1, 1)),
    Graded(
        "1 in 100 items lost wholly",
        lambda random, runs, items: np.where(
            random.random((runs, items)) < MARGIN, 1.0, random.uniform(-0.01, 0.01, (runs, items))
        ),
    ),
    Graded(
        "unbounded and lopsided",
        lambda random, runs, items: random.exponential(0.2, (runs, items)) - 0.2 + MARGIN,
        np.inf,
    ),
)


def false_passes_of_graded(graded: Graded, items: int, runs: int, random: np.random.Generator) -> float:
    """Share of passes at the margin, at one look."""
    drawn = graded.draw(random, runs, items)
    bounds = [SCORE_TEST.bounds(LossSample(row, graded=True, largest=graded.largest), CONFIDENCE) for row in drawn]
    return sum(one.upper < MARGIN for one in bounds) / runs
