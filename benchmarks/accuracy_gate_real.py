"""The gate where its assumptions are hardest: groups, many small tasks, few clusters, graded scores, gate after gate.

Whole gates are drawn and judged by the package's own samples, tests, looks and budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from accuracy_gate_ours import CONFIDENCE, MARGIN, TASK_MARGIN, Gate, Truth
from numpy.typing import NDArray

from llm_pipeline.accuracy.error_budget import policy_at, share_of_error
from llm_pipeline.accuracy.evaluation import TaskGroup
from llm_pipeline.accuracy.gate import judge_pairs
from llm_pipeline.accuracy.looks import LookPlan
from llm_pipeline.accuracy.paired import TaskPairs
from llm_pipeline.accuracy.rehearsal import parts_of, plan_looks, rehearse
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.losses import LossSample
from llm_pipeline.statistics.score_test import SCORE_TEST

SHIPPED = {"gsm8k": 1319, "arc_challenge": 1172, "hellaswag": 10_042, "winogrande": 1267}
MMLU = {f"subject{number:02}": size for number, size in enumerate([100] * 20 + [150] * 15 + [300] * 15 + [783] * 7)}
BBH = {f"bbh{number:02}": 250 for number in range(27)}
SMALL = {f"small{number:02}": 200 for number in range(20)} | {"large": 6000}
POLICY = AccuracyPolicy(margin=MARGIN, task_margin=TASK_MARGIN, minimum_items=2000)


def power_of_tasks() -> Iterator[tuple[str, float, float]]:
    """What is asked, the chance of a lossless model to pass it at 5 % flips, and what it should be at least."""
    yield "the shipped example, method auto", _power(SHIPPED), 0.95
    yield "MMLU, one group by items", _power(MMLU, "items"), 0.95
    yield "MMLU, one group by tasks", _power(MMLU, "tasks"), 0.95
    yield "BBH, one group", _power(BBH, "items"), 0.9
    yield "20 small tasks beside a large one, harm_only", _power(SMALL, small_tasks="harm_only"), 0.85


def power_before() -> Iterator[tuple[str, float]]:
    """The same as it was: every task by itself."""
    yield "MMLU, each subject by itself", _power(MMLU)
    yield "BBH, each task by itself", _power(BBH)
    yield "20 small tasks beside a large one, each proving", _power(SMALL)


def _power(tasks: dict[str, int], weighting: str | None = None, **changes: str) -> float:
    policy = policy_at(POLICY.model_copy(update=changes), share_of_error(POLICY, 1))
    group = TaskGroup(name="all", tasks=tuple(tasks), weighting=weighting) if weighting else None  # type: ignore[arg-type]
    groups = (group,) if group else ()
    return rehearse(parts_of(tasks, groups), plan_looks(tasks, policy, groups), policy).go


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


def harm_seen_in_small_tasks(loss: float, runs: int, random: np.random.Generator) -> float:
    """Share of NO_GO where one of twenty small tasks lost so much, and small tasks are judged for harm only."""
    policy = POLICY.model_copy(update={"small_tasks": "harm_only"})
    stopped = 0
    for _ in range(runs):
        truths = [Truth(0.05 + loss, loss), *[Truth(0.05, 0.0)] * 20]
        sizes = [200] * 20 + [6000]
        tasks = [_part(n, size, truth, random) for n, (size, truth) in enumerate(zip(sizes, truths, strict=True))]
        stopped += judge_pairs(tasks, policy).verdict is Verdict.NO_GO
    return stopped / runs


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


def false_pass_after_retries(budget: str, gates: int, runs: int, random: np.random.Generator) -> float:
    """Share of candidates at the margin that pass one of several gates, each with as many more items as the first."""
    policy = AccuracyPolicy(error_budget=budget)  # type: ignore[arg-type]
    first, truth = 4300, Truth(0.05, MARGIN)
    lost, gained, passed = (np.zeros(runs, dtype=np.int64) for _ in range(3))
    for number in range(1, gates + 1):
        own = policy_at(policy, share_of_error(policy, number))
        gate = Gate(LookPlan("fixed", (first * number,)), alpha=1 - own.confidence)
        more = random.multinomial(first, truth.shares, size=runs)
        lost, gained = lost + more[:, 0], gained + more[:, 1]
        passed |= gate.decide(1, lost, gained).go
    return float(passed.mean())


def ladder_passes(budget: str, rungs: int, loss: float, runs: int, random: np.random.Generator) -> float:
    """Share of releases in which some rung of a ladder passes, each of which loses so much."""
    policy = AccuracyPolicy(error_budget=budget)  # type: ignore[arg-type]
    own = policy_at(policy, share_of_error(policy, 1, rungs))
    gate = Gate(LookPlan("fixed", (4300,)), alpha=1 - own.confidence)
    drawn = random.multinomial(4300, Truth(0.05, loss).shares, size=(runs, rungs))
    return float(
        gate.decide(1, drawn[..., 0].ravel(), drawn[..., 1].ravel()).go.reshape(runs, rungs).any(axis=1).mean()
    )
