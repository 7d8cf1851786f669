"""The test of a loss on a sample whose size does not depend on what it shows: score, exact or Student's t."""

from __future__ import annotations

import math

import numpy as np

from llm_pipeline.statistics.intervals import (
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
from llm_pipeline.statistics.losses import LossSample

_WIDEST_QUANTILE, _BISECTIONS = 7.0, 30


class ScoreTest:
    """Tango's score test for right and wrong answers, Student's t for graded ones; both know clusters.

    Clusters divide the counts by their design effect (J. N. K. Rao and A. J. Scott, Biometrics 48 (1992) 577-585) and
    replace the normal quantile by Student's with one degree of freedom less than there are clusters. A t statistic of
    losses that are rare and large passes too often, so its bounds are moved by the skewness term of the Edgeworth
    expansion (N. J. Johnson, Journal of the American Statistical Association 73 (1978) 536-544; P. Hall, Journal of
    the Royal Statistical Society B 54 (1992) 221-228). No expansion helps where clusters are few: they bound nothing.
    """

    def bounds(self, sample: LossSample, confidence: float, lower_confidence: float | None = None) -> Bounds:
        """The mean loss with its one-sided bounds; the lower one may have a confidence of its own."""
        below = lower_confidence or confidence
        if _degrees(sample) <= 0.0 or sample.has_few_clusters:
            return Bounds(sample.mean, -sample.largest, sample.largest)
        return Bounds(sample.mean, _lower(sample, below), _upper(sample, confidence))

    def p_value(self, sample: LossSample, limit: float) -> float:
        """P-value of "the loss is at most `limit`": the level at which the lower bound meets it."""
        if limit >= sample.largest or _degrees(sample) <= 0.0 or sample.has_few_clusters:
            return 1.0
        if not sample.graded and sample.groups is None:
            lost, gained, pairs = _counts(sample)
            return max(tail_of(tango_statistic(lost, gained, pairs, limit)), binomial_tail(lost - gained, pairs, limit))
        low, high = 0.0, _WIDEST_QUANTILE
        if _lower(sample, 0.5) <= limit:
            return 1.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if _lower(sample, 1.0 - tail_of(middle)) > limit else (low, middle)
        return tail_of(low)


SCORE_TEST = ScoreTest()


def _counts(sample: LossSample) -> tuple[float, float, float]:
    effect = sample.design_effect
    return sample.lost / effect, sample.gained / effect, sample.pairs / effect


def _degrees(sample: LossSample) -> float:
    return sample.independent - 1.0 if sample.graded or sample.groups is not None else math.inf


def _error(sample: LossSample) -> float:
    """Standard error of the mean loss."""
    return math.sqrt(sample.variance / max(1.0, sample.pairs - 1.0))


def _has_few_changes(sample: LossSample) -> bool:
    return sample.changed < FEW_CHANGES


def _lower(sample: LossSample, confidence: float) -> float:
    if sample.graded:
        return -_upper(sample.mirrored(), confidence)
    counted = score_lower(*_counts(sample), confidence, _degrees(sample))
    return max(-1.0, counted - _lean(sample.mirrored(), confidence)) if sample.groups is not None else counted


def _upper(sample: LossSample, confidence: float) -> float:
    degrees = _degrees(sample)
    if not sample.graded:
        counted = score_upper(*_counts(sample), confidence, degrees)
        return min(1.0, counted + _lean(sample, confidence)) if sample.groups is not None else counted
    if _has_few_changes(sample):
        # The spread of few changes says little about the tail: each changed item counts as a whole one. Without bounds
        # a whole one is the baseline's mean, or the largest loss seen; else not even the same model could pass.
        lost, _, pairs = _counts(sample)
        whole = sample.largest if math.isfinite(sample.largest) else max(1.0, float(np.abs(sample.losses).max()))
        return whole * clopper_pearson_upper(lost, pairs, confidence)
    reach = critical_value(confidence, degrees) * _error(sample)
    return min(sample.largest, sample.mean + reach + _lean(sample, confidence))


def _lean(sample: LossSample, confidence: float) -> float:
    """By how much skewness moves a bound: the first-order term in the Edgeworth expansion of Student's t."""
    return sample.asymmetry * (1.0 + 2.0 * critical_value(confidence) ** 2) / 6.0
