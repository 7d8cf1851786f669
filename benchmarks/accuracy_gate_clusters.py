"""False passes when items come in clusters, with and without telling the gate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from accuracy_gate_ours import CONFIDENCE, MARGIN, Truth
from numpy.typing import NDArray

from llm_pipeline.accuracy.looks import LookPlan
from llm_pipeline.accuracy.sequential import decision_rule
from llm_pipeline.statistics.losses import LossSample
from llm_pipeline.statistics.score_test import SCORE_TEST


@dataclass(frozen=True)
class Clusters:
    """Clusters of equal size; `likeness` is the correlation of two items' losses within one."""

    number: int
    size: int
    likeness: float


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


def _passes(losses: NDArray[np.float64], groups: NDArray[np.intp] | None, plan: LookPlan) -> bool:
    for look, size in enumerate(plan.sizes, start=1):
        sample = LossSample(losses[:size], None if groups is None else groups[:size])
        if SCORE_TEST.bounds(sample, 1 - decision_rule(plan, look).level(1 - CONFIDENCE)).upper < MARGIN:
            return True
    return False


def _draw(clusters: Clusters, truth: Truth, random: np.random.Generator) -> NDArray[np.float64]:
    """Each cluster has its own chances, from a Dirichlet distribution around the truth's."""
    concentration = 1 / clusters.likeness - 1
    weights = random.standard_gamma(np.array(truth.shares) * concentration, size=(clusters.number, 3))
    chances = weights / weights.sum(axis=1, keepdims=True)
    kinds = (random.random((clusters.number, clusters.size, 1)) > chances.cumsum(axis=1)[:, None, :2]).sum(axis=2)
    return _KINDS[kinds].ravel()
