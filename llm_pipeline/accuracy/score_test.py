"""The test of a loss on a sample whose size does not depend on what it shows: score, exact or Student's t."""

from __future__ import annotations

import math
from typing import Protocol

from llm_pipeline.accuracy.intervals import (
    FEW_CHANGES,
    Bounds,
    binomial_tail,
    clopper_pearson_upper,
    critical_value,
    score_lower,
    score_upper,
    tail_of,
    tango_statistic,
)
from llm_pipeline.accuracy.losses import LossSample


class LossTest(Protocol):
    """A way to bound a mean loss, and to test it against a limit."""

    def bounds(self, sample: LossSample, confidence: float, lower_confidence: float | None = None) -> Bounds:
        """The mean loss with its one-sided bounds; the lower one may have a confidence of its own."""

    def p_value(self, sample: LossSample, limit: float) -> float:
        """P-value of "the loss is at most `limit`": small when the loss is surely beyond."""


class ScoreTest:
    """Tango's score test for right and wrong answers, Student's t for graded ones; both know clusters.

    Clusters divide the counts by their design effect (J. N. K. Rao and A. J. Scott, Biometrics 48 (1992) 577-585) and
    replace the normal quantile by Student's with one degree of freedom less than there are clusters.
    """

    def bounds(self, sample: LossSample, confidence: float, lower_confidence: float | None = None) -> Bounds:
        """The mean loss with its one-sided bounds; the lower one may have a confidence of its own."""
        below = lower_confidence or confidence
        if _degrees(sample) <= 0.0:
            return Bounds(sample.mean, -1.0, 1.0)
        if sample.graded:
            lower = -_graded_upper(sample.mirrored(), below)
            return Bounds(sample.mean, lower, _graded_upper(sample, confidence))
        counts, degrees = _counts(sample), _degrees(sample)
        return Bounds(sample.mean, score_lower(*counts, below, degrees), score_upper(*counts, confidence, degrees))

    def p_value(self, sample: LossSample, limit: float) -> float:
        """P-value of "the loss is at most `limit`"."""
        if limit >= 1.0:
            return 1.0
        if not sample.graded:
            lost, gained, pairs = _counts(sample)
            return max(
                tail_of(tango_statistic(lost, gained, pairs, limit), _degrees(sample)),
                binomial_tail(lost - gained, pairs, limit),
            )
        error = math.sqrt(sample.variance / max(1.0, sample.pairs - 1.0))
        if sample.lost + sample.gained < FEW_CHANGES or not error:
            return 1.0
        return tail_of((sample.mean - limit) / error, _degrees(sample))


SCORE_TEST = ScoreTest()


def _counts(sample: LossSample) -> tuple[float, float, float]:
    effect = sample.design_effect
    return sample.lost / effect, sample.gained / effect, sample.pairs / effect


def _degrees(sample: LossSample) -> float:
    return sample.independent - 1.0 if sample.graded or sample.groups is not None else math.inf


def _graded_upper(sample: LossSample, confidence: float) -> float:
    if sample.lost + sample.gained < FEW_CHANGES:
        # The spread of few changes says little about the tail: each changed item counts as a whole one.
        lost, _, pairs = _counts(sample)
        return clopper_pearson_upper(lost, pairs, confidence)
    error = math.sqrt(sample.variance / (sample.pairs - 1.0))
    return min(1.0, sample.mean + critical_value(confidence, _degrees(sample)) * error)
