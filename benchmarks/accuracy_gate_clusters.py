"""False passes when items come in clusters, with and without telling the gate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from accuracy_gate_ours import CONFIDENCE, MARGIN, Truth
from numpy.typing import NDArray

from llm_pipeline.accuracy.looks import LookPlan
from llm_pipeline.accuracy.rehearsal import plan_looks
from llm_pipeline.accuracy.sequential import decision_rule
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.statistics.evalue import log_wealth, wealth_needed
from llm_pipeline.statistics.losses import LossSample


@dataclass(frozen=True)
class Clusters:
    """Clusters of equal size; `likeness` is the correlation of two items' losses within one."""

    number: int
    size: int
    likeness: float


FEW_CLUSTERS = (Clusters(20, 50, 0.5), Clusters(40, 50, 0.8), Clusters(40, 50, 0.3))
MORE_CLUSTERS = (Clusters(60, 50, 0.5), Clusters(100, 40, 0.5))
_KINDS = np.array([1.0, -1.0, 0.0])


def false_passes(
    clusters: Clusters, truth: Truth, plan: LookPlan, runs: int, random: np.random.Generator
) -> tuple[float, float]:
    """Share of evaluations that pass at some look: with the clusters known, and as if there were none."""
    passed = np.zeros(2)
    for _ in range(runs):
        losses = _draw(clusters, truth, random)
        groups = np.repeat(np.arange(clusters.number), clusters.size)
        passed += [_passes(losses, groups, plan), _passes(losses, None, plan)]
    known, unknown = passed / runs
    return float(known), float(unknown)


def false_passes_of_clusters(
    clusters: Clusters, margin: float, method: str, runs: int, random: np.random.Generator
) -> float:
    """Share of passes at the margin, where each item may repeat what its whole cluster does."""
    groups = np.repeat(np.arange(clusters.number), clusters.size)
    policy = AccuracyPolicy(margin=margin, minimum_items=200, method=method)  # type: ignore[arg-type]
    plan = plan_looks({"task": groups.size}, policy)
    truth = Truth(0.05, margin)
    return sum(_passes(_copied(clusters, truth, random), groups, plan, margin) for _ in range(runs)) / runs


def _copied(clusters: Clusters, truth: Truth, random: np.random.Generator) -> NDArray[np.float64]:
    shape = (clusters.number, clusters.size)
    whole, own = random.choice(3, (clusters.number, 1), p=truth.shares), random.choice(3, shape, p=truth.shares)
    return _KINDS[np.where(random.random(shape) < np.sqrt(clusters.likeness), whole, own)].ravel()


def _passes(
    losses: NDArray[np.float64], groups: NDArray[np.intp] | None, plan: LookPlan, margin: float = MARGIN
) -> bool:
    for look, size in enumerate(plan.sizes, start=1):
        rule = decision_rule(plan, look)
        sample = LossSample(losses[:size], None if groups is None else groups[:size])
        if plan.method == "e_value":
            passed = log_wealth(sample, margin) > wealth_needed(CONFIDENCE)
        else:
            passed = rule.test.bounds(sample, 1 - rule.level(1 - CONFIDENCE)).upper < margin
        if passed:
            return True
    return False


def _draw(clusters: Clusters, truth: Truth, random: np.random.Generator) -> NDArray[np.float64]:
    """Each cluster has its own chances, from a Dirichlet distribution around the truth's."""
    concentration = 1 / clusters.likeness - 1
    weights = random.standard_gamma(np.array(truth.shares) * concentration, size=(clusters.number, 3))
    chances = weights / weights.sum(axis=1, keepdims=True)
    kinds = (random.random((clusters.number, clusters.size, 1)) > chances.cumsum(axis=1)[:, None, :2]).sum(axis=2)
    return _KINDS[kinds].ravel()
