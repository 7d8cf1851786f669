"""After how many items the gate looks, and how often a model that lost nothing would pass: simulated beforehand.

    plan = plan_looks({"gsm8k": 1319, "mmlu": 14042}, policy)
    rehearse(parts_of({"gsm8k": 1319, "mmlu": 14042}), plan, policy).go  # 0.97: the chance of GO

A gate that passes a lossless model in fewer than four of five runs wastes what it costs, whatever it is asked. The
counts of many evaluations are drawn and judged at once by the gate's own statistics, looks and levels. What is left
out hardly matters to a lossless model: a NO_GO, an ANOMALOUS, and stopping early for one task's hopelessness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.accuracy.evaluation import TaskGroup
from llm_pipeline.accuracy.gate import is_only_for_harm
from llm_pipeline.accuracy.looks import TYPICAL_FLIPS, LookPlan
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.evalue import log_mixture, wealth_needed
from llm_pipeline.statistics.spending import IMPROBABLE, boundaries, late

RUNS = 400
"""Simulated evaluations: a chance of 0.8 is met within 0.04 in 95 of 100 cases."""

_RUNS_TO_CHOOSE = 200
_AS_OFTEN = 0.05
"""Two methods that pass a lossless model this much alike differ by what they ask."""

_GROWTH = 1.15
_NEARLY = 1e-9
_SEED = 20_261_122
_NORMAL = NormalDist()

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """A task or group that is judged as one.

    Attributes:
        name: The task or group.
        sizes: Items of it; of a group whose tasks count alike, of each task.
    """

    name: str
    sizes: tuple[int, ...]

    @property
    def items(self) -> int:
        """Items of all of its tasks together."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Rehearsal:
    """The outcome of many simulated evaluations of one model.

    Attributes:
        go: Share that passed.
        items: Mean of the items asked.
        failing: The task that kept most of the others from passing at the last look; empty for the pool.
    """

    go: float
    items: float
    failing: str


def parts_of(available: Mapping[str, int], groups: Sequence[TaskGroup] = ()) -> tuple[Part, ...]:
    """The parts that are judged: groups instead of their tasks."""
    left, parts = dict(available), list[Part]()
    for group in groups:
        if own := [left.pop(task) for task in group.tasks if task in left]:
            parts.append(Part(group.name, tuple(own) if group.weighting == "tasks" else (sum(own),)))
    return (*parts, *(Part(task, (items,)) for task, items in left.items()))


def rehearse(
    parts: Sequence[Part],
    plan: LookPlan,
    policy: AccuracyPolicy,
    *,
    flips: float = TYPICAL_FLIPS,
    runs: int = RUNS,
) -> Rehearsal:
    """Simulate many evaluations of one model, and how the gate judges them.

    Args:
        parts: What is judged.
        plan: The looks.
        policy: Margins, confidence, smallest sample and what small tasks must show.
        flips: Share of items that change either way.
        runs: Simulated evaluations.
    """
    random = np.random.default_rng(_SEED)
    judge = _Judge(plan, policy, tuple(parts))
    counts = [np.zeros((runs, len(part.sizes), 2), dtype=np.int64) for part in parts]
    seen = [np.zeros(len(part.sizes), dtype=np.int64) for part in parts]
    passed, asked, short = 0, 0.0, np.zeros(len(parts))
    for look, size in enumerate(plan.sizes, start=1):
        for number, part in enumerate(parts):
            until = np.round(np.array(part.sizes) * plan.items / judge.pool * plan.shares[look - 1]).astype(np.int64)
            counts[number] = counts[number] + _more(random, until - seen[number], len(counts[number]), flips)
            seen[number] = until
        go, hopeless, failing = judge.look(look, counts, seen)
        last = look == len(plan.sizes)
        ended = np.ones_like(go) if last else go | hopeless
        passed, asked = passed + int(go.sum()), asked + size * int(ended.sum())
        short += failing if last else 0.0
        counts = [own[~ended] for own in counts]
        if not counts or not len(counts[0]):
            break
    worst = int(short.argmax()) if short.any() else None
    return Rehearsal(passed / runs, asked / runs, "" if worst is None else parts[worst].name)


def _more(random: np.random.Generator, items: Counts, runs: int, flips: float) -> Counts:
    """Lost and gained of so many further items of each task, as often either: shape (runs, tasks, 2)."""
    changed = random.binomial(items, flips, size=(runs, items.size))
    lost = random.binomial(changed, 0.5)
    return np.stack([lost, changed - lost], axis=-1)


@dataclass(frozen=True)
class _Judge:
    """The looks of one gate, over many evaluations at once."""

    plan: LookPlan
    policy: AccuracyPolicy
    parts: tuple[Part, ...]

    @property
    def pool(self) -> int:
        return max(1, sum(part.items for part in self.parts))

    def look(self, look: int, counts: Sequence[Counts], seen: Sequence[Counts]) -> tuple[Mask, Mask, Numbers]:
        """Which evaluations pass, which are hopeless, and how often each part alone did not pass."""
        pooled = np.concatenate(counts, axis=1).sum(axis=1, keepdims=True)
        size = np.array([sum(int(own.sum()) for own in seen)])
        enough = size[0] >= self.policy.minimum_items
        go = self._passes(pooled, size, self.policy.margin, look) & enough
        failing = np.zeros(len(self.parts))
        last = look == len(self.plan.sizes)
        for number, part in enumerate(self.parts):
            asked = np.ones_like(go) if last else go.copy()  # before the last look only those that may pass
            if asked.any():
                good = self._part_passes(part, counts[number][asked], seen[number], look)
                failing[number] = np.count_nonzero(~good)
                go[asked] &= good
        return go, self._hopeless(pooled, size, look), failing

    def _part_passes(self, part: Part, counts: Counts, seen: Counts, look: int) -> Mask:
        if not seen.all():
            return np.zeros(len(counts), dtype=bool)
        sizes = {part.name: round(part.items * self.plan.items / self.pool)}
        if not is_only_for_harm(part.name, sizes, self.policy):
            return self._passes(counts, seen, self.policy.task_margin, look)
        loss = ((counts[..., 0] - counts[..., 1]) / seen).mean(axis=1)
        return np.ones(len(counts), dtype=bool) if look == len(self.plan.sizes) else loss <= self.policy.task_margin

    def _passes(self, counts: Counts, seen: Counts, margin: float, look: int) -> Mask:
        if self.plan.method == "e_value":
            return _wealth(counts, seen, margin, 1.0) > wealth_needed(self.policy.confidence)
        return _scores_below(counts, seen, margin, self._reach(look), 1.0)

    def _reach(self, look: int) -> float:
        alpha = 1.0 - self.policy.confidence
        if len(self.plan.sizes) == 1:
            return _NORMAL.inv_cdf(self.policy.confidence)
        return boundaries(self.plan.shares, late, alpha)[look - 1]

    def _hopeless(self, pooled: Counts, size: Counts, look: int) -> Mask:
        """As `sequential.chance_of_go`: the last bound is as good as sure to be beyond the margin."""
        if look == len(self.plan.sizes):
            return np.zeros(len(pooled), dtype=bool)
        share, items = self.plan.shares[look - 1], float(size[0])
        lost, gained = pooled[:, 0, 0], pooled[:, 0, 1]
        variance = (lost + gained) / items - ((lost - gained) / items) ** 2
        limit = self.policy.margin - _NORMAL.inv_cdf(IMPROBABLE) * np.sqrt(variance / items * (1.0 - share))
        grown = (1.0 + 1.0 / items) / share
        if self.plan.method == "e_value":
            return _wealth(pooled, size, limit[:, None], grown) <= wealth_needed(self.policy.confidence)
        return ~_scores_below(pooled, size, limit, self._reach(len(self.plan.sizes)), grown)


def _weights(seen: Counts) -> Numbers:
    """What an item of each task counts, where tasks count alike; 1 on average."""
    weights: Numbers = seen.sum() / seen.size / seen
    return weights


def _scores_below(counts: Counts, seen: Counts, margin: float | Numbers, reach: float, copies: float) -> Mask:
    """Whether Tango's bound is below the margin, as `intervals.score_upper` has it."""
    weights, pairs = _weights(seen), float(seen.sum())
    effect = float((weights * weights * seen).sum()) / pairs / copies
    lost, gained = (counts * weights[:, None]).sum(axis=1).T / effect
    pairs /= effect
    limit = np.broadcast_to(np.asarray(margin, dtype=float), lost.shape)
    linear = -(lost + gained) + limit * (2.0 * pairs - lost + gained)
    root = np.sqrt(np.maximum(0.0, linear**2 + 8.0 * pairs * gained * limit * (1.0 - limit)))
    variance = pairs * (2.0 * np.maximum(0.0, (root - linear) / (4.0 * pairs)) + limit * (1.0 - limit))
    below: Mask = (lost - gained - pairs * limit) / np.sqrt(variance) < -reach
    nothing_gained = gained == 0.0
    if nothing_gained.any():
        most = np.array([_most_lost(pairs, own, _NORMAL.cdf(-reach)) for own in limit[nothing_gained]])
        below[nothing_gained] = lost[nothing_gained] <= most
    return below


def _most_lost(pairs: float, margin: float, level: float) -> int:
    """The most lost items, with none gained, whose exact bound is below the margin (Clopper and Pearson); or -1."""
    if margin >= 1.0:
        return math.floor(pairs)
    numbers = np.arange(min(math.floor(pairs), math.ceil(pairs * margin)) + 1)
    steps = np.log((pairs - numbers[:-1]) / (numbers[:-1] + 1.0) * margin / (1.0 - margin))
    chances = np.logaddexp.accumulate(pairs * math.log1p(-margin) + np.concatenate([[0.0], np.cumsum(steps)]))
    return int(np.searchsorted(chances, math.log(level))) - 1


def _wealth(counts: Counts, seen: Counts, limit: float | Numbers, copies: float) -> Numbers:
    """Logarithm of what bets on less than the limit have won, as `evalue.log_wealth` has it."""
    weights = _weights(seen)
    most = float(weights.max())
    changes = np.concatenate([counts, (seen - counts.sum(axis=2))[..., None]], axis=2)
    losses = (weights[:, None] * np.array([1.0, -1.0, 0.0])).ravel()
    limit = np.minimum(limit, most * (1.0 - _NEARLY))
    return log_mixture((limit - losses) / (most - limit), copies * changes.reshape(len(counts), -1))


def plan_looks(
    available: Mapping[str, int], policy: AccuracyPolicy, groups: Sequence[TaskGroup] = (), *, bounded: bool = True
) -> LookPlan:
    """Plan the looks of one evaluation.

    Args:
        available: Items of each task.
        policy: Its `maximum_items` caps what is asked; `auto` becomes the method by which a lossless model passes these
            tasks more often, or by which it is asked less where both pass it as often.
        groups: Tasks that are judged as one.
        bounded: Every score has bounds. Nothing can be bet on a loss without them: looks are planned then.
    """
    items = sum(available.values())
    if policy.maximum_items is not None:
        items = min(items, policy.maximum_items)
    if policy.method == "fixed" or (policy.method != "auto" and bounded):
        return _planned(policy.method, items, policy)
    if not bounded:
        return _planned("group_sequential", items, policy)
    plans = [_planned(method, items, policy) for method in ("group_sequential", "e_value")]
    if len(plans[1].sizes) == 1:
        return plans[0]
    looks, bets = (rehearse(parts_of(available, groups), plan, policy, runs=_RUNS_TO_CHOOSE) for plan in plans)
    if abs(looks.go - bets.go) <= _AS_OFTEN:
        return plans[bets.items < looks.items]
    return plans[bets.go > looks.go]


def _planned(method: Literal["fixed", "group_sequential", "e_value"], items: int, policy: AccuracyPolicy) -> LookPlan:
    if method == "e_value":
        return LookPlan(method, _growing(policy.minimum_items, items))
    looks = policy.looks if method == "group_sequential" else 1
    return LookPlan(method, _even(policy.minimum_items, items, looks))


def _even(smallest: int, items: int, looks: int) -> tuple[int, ...]:
    first = max(smallest, math.ceil(items / looks))
    if looks == 1 or first >= items:
        return (items,)
    step = (items - first) / (looks - 1)
    return tuple(sorted({first + round(step * look) for look in range(looks)}))


def _growing(smallest: int, items: int) -> tuple[int, ...]:
    sizes = []
    size = float(smallest)
    while size < items:
        sizes.append(int(size))
        size *= _GROWTH
    return (*sizes, items)
