"""The package's own gate on thousands of simulated evaluations at once.

A verdict on right and wrong answers depends on two counts, so each look becomes a table: for every number of gained
items, from how many lost ones on it no longer says GO, and from how many on it stops or says NO_GO. The tables are
made by the package's own boundaries and statistics; `cross_check` asks its judge about whole data sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.accuracy.looks import LookPlan
from llm_pipeline.accuracy.sequential import decision_rule, judge_look
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.intervals import binomial_tail, score_upper, tango_statistic
from llm_pipeline.statistics.spending import IMPROBABLE

MARGIN, TASK_MARGIN, CONFIDENCE = 0.01, 0.03, 0.95
POLICY = AccuracyPolicy(margin=MARGIN, task_margin=0.5, confidence=CONFIDENCE, minimum_items=30)
_NORMAL = NormalDist()

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Truth:
    """What a simulated candidate does to an item: how often it flips, and what it loses on average."""

    flips: float
    loss: float

    @property
    def shares(self) -> tuple[float, float, float]:
        """Chance that an item is lost, gained, unchanged."""
        return (self.flips + self.loss) / 2, (self.flips - self.loss) / 2, 1 - self.flips


@dataclass(frozen=True)
class Outcome:
    """Of many evaluations of one truth: shares of the verdicts, and the mean of items asked."""

    go: float
    no_go: float
    items: float


@dataclass(frozen=True)
class Decided:
    """Which of many evaluations one look decides, and how."""

    go: Mask
    no_go: Mask
    hopeless: Mask


@dataclass(frozen=True)
class Gate:
    """A plan of looks with a margin; NO_GO may be tested at a share of the error, as Holm's first step does."""

    plan: LookPlan
    margin: float = MARGIN
    harm_alpha: float = 1 - CONFIDENCE

    def decide(self, look: int, lost: Counts, gained: Counts) -> Decided:
        """What the package's gate says at one look about these counts."""
        return _scores(self, lost, gained, look)

    def simulate(self, truth: Truth, runs: int, random: np.random.Generator) -> Outcome:
        """Run many evaluations until a look decides."""
        lost, gained = (np.zeros(runs, dtype=np.int64) for _ in range(2))
        go, no_go, asked, before = 0, 0, 0, 0
        for look, size in enumerate(self.plan.sizes, start=1):
            asked += (size - before) * lost.size
            more = random.multinomial(size - before, truth.shares, size=lost.size)
            lost, gained, before = lost + more[:, 0], gained + more[:, 1], size
            said = self.decide(look, lost, gained)
            go, no_go = go + int(said.go.sum()), no_go + int(said.no_go.sum())
            going = ~(said.go | said.no_go | said.hopeless)
            lost, gained = lost[going], gained[going]
            if not lost.size:
                break
        return Outcome(go / runs, no_go / runs, asked / runs)


def _scores(gate: Gate, lost: Counts, gained: Counts, look: int) -> Decided:
    plan, margin = gate.plan, gate.margin
    rule = decision_rule(plan, look)
    level, harm_level = rule.level(1 - CONFIDENCE), rule.harm_level(gate.harm_alpha)
    end = decision_rule(plan, len(plan.sizes)).level(1 - CONFIDENCE)
    size, last = plan.sizes[look - 1], look == len(plan.sizes)
    share = size / plan.items

    def passes(a: int, b: int, scale: float, limit: float, error: float) -> bool:
        if b == 0:
            return score_upper(a * scale, 0, size * scale, 1 - error) < limit
        return tango_statistic(a * scale, b * scale, size * scale, limit) < _NORMAL.inv_cdf(error)

    def not_go(a: int, b: int) -> bool:
        return not passes(a, b, 1.0, margin, level)

    def harmful(a: int, b: int) -> bool:
        tail = _NORMAL.cdf(-tango_statistic(a, b, size, margin))
        return max(tail, binomial_tail(a - b, size, margin)) < harm_level

    def hopeless(a: int, b: int) -> bool:
        limit = margin - _NORMAL.inv_cdf(IMPROBABLE) * _spread(a, b, size, share)
        return not last and not passes(a, b, (1 + 1 / size) / share, limit, end)

    return Decided(~_from(not_go, lost, gained), _from(harmful, lost, gained), _from(hopeless, lost, gained))


def _from(rule: Callable[[int, int], bool], lost: Counts, gained: Counts) -> Mask:
    """Where the rule holds, given that for every number of gained items it holds from some number of lost ones on."""
    most = int(lost.max()) + 1
    first = np.zeros(int(gained.max()) + 1, dtype=np.int64)
    for number in np.unique(gained):
        low, high = -1, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if rule(middle, int(number)) else (middle, high)
        first[number] = high
    return lost >= first[gained]


def _spread(lost: float, gained: float, size: int, share: float) -> float:
    mean = (lost - gained) / size
    return math.sqrt(max(0.0, (lost + gained) / size - mean * mean) / size * (1 - share))


def simulate_tasks(plan: LookPlan, tasks: int, truth: Truth, runs: int, random: np.random.Generator) -> Outcome:
    """Equal tasks with the policy's usual margins: one point pooled, three for each task alone.

    Args:
        plan: Looks of one task; all tasks are asked alike.
        tasks: How many.
        truth: Of every task.
        runs: Evaluations.
        random: Where the chance comes from.
    """
    together = Gate(LookPlan(tuple(size * tasks for size in plan.sizes)))
    alone = Gate(plan, TASK_MARGIN, (1 - CONFIDENCE) / tasks)
    lost, gained = (np.zeros((runs, tasks), dtype=np.int64) for _ in range(2))
    going, go, no_go, asked, before = np.ones(runs, dtype=bool), 0, 0, np.zeros(runs), 0
    for look, size in enumerate(plan.sizes, start=1):
        more = random.multinomial(size - before, truth.shares, size=(runs, tasks))
        lost, gained, before = lost + more[..., 0], gained + more[..., 1], size
        asked[going] = size * tasks
        pooled = together.decide(look, lost.sum(axis=1), gained.sum(axis=1))
        each = alone.decide(look, lost.ravel(), gained.ravel())
        shape = (runs, tasks)
        bad = pooled.no_go | each.no_go.reshape(shape).any(axis=1)
        good = pooled.go & each.go.reshape(shape).all(axis=1) & ~bad
        go, no_go = go + int((going & good).sum()), no_go + int((going & bad).sum())
        going &= ~(good | bad | pooled.hopeless | each.hopeless.reshape(shape).any(axis=1))
    return Outcome(go / runs, no_go / runs, float(asked.mean()))


@dataclass(frozen=True)
class CrossCheck:
    """Whole data sets through the package's own judge: how many, and where the tables said otherwise."""

    gate: Gate
    truth: Truth

    def differences(self, runs: int, random: np.random.Generator) -> int:
        """Looks at which the judge and the tables disagree."""
        return sum(self._differs(random) for _ in range(runs))

    def _differs(self, random: np.random.Generator) -> int:
        plan = self.gate.plan
        kinds = random.choice(3, size=plan.items, p=self.truth.shares)
        before = [_item(number, float(kind != 1)) for number, kind in enumerate(kinds)]
        after = [_item(number, float(kind != 0)) for number, kind in enumerate(kinds)]
        for look, size in enumerate(plan.sizes, start=1):
            lost, gained = (np.array([(kinds[:size] == kind).sum()]) for kind in (0, 1))
            said = self.gate.decide(look, lost, gained)
            judgement = judge_look(before, after[:size], plan, look, POLICY)
            if _word(said, last=look == len(plan.sizes)) != (judgement and judgement.verdict):
                return 1
            if judgement:
                return 0
        return 1


def _word(said: Decided, *, last: bool) -> Verdict | None:
    if said.go[0]:
        return Verdict.GO
    if said.no_go[0]:
        return Verdict.NO_GO
    return Verdict.INCONCLUSIVE if last or said.hopeless[0] else None


def _item(number: int, score: float) -> ScoredItem:
    return ScoredItem(task="t", item_id=number, fingerprint="", score=score, generative=False)
