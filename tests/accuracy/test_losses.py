"""Clusters: what the likeness of items in one costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llm_pipeline.accuracy.paired import compare
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.statistics.losses import LossSample, group_numbers
from llm_pipeline.statistics.score_test import SCORE_TEST


def drawn(clusters: int, size: int, likeness: float, seed: int = 1) -> LossSample:
    random = np.random.default_rng(seed)
    weights = random.standard_gamma(np.array([0.05, 0.05, 0.9]) * (1 / likeness - 1), size=(clusters, 3))
    chances = weights / weights.sum(axis=1, keepdims=True)
    losses = np.concatenate([random.choice([1.0, -1.0, 0.0], p=chance, size=size) for chance in chances])
    return LossSample(losses, np.repeat(np.arange(clusters), size))


def test_the_variance_is_the_cluster_robust_one() -> None:
    """The same number as regressing the losses on a constant with a sandwich over clusters (HC1 for groups)."""
    sample = drawn(60, 12, 0.4)
    sums = [(sample.losses[sample.groups == g] - sample.losses.mean()).sum() for g in range(60)]
    sandwich = 60 / 59 * sum(total**2 for total in sums) / sample.losses.size**2
    assert sample.variance / sample.pairs == pytest.approx(sandwich)
    assert sample.design_effect > 2


def test_graded_scores_in_clusters_have_students_interval_over_clusters() -> None:
    random = np.random.default_rng(4)
    half = random.normal(0.0, 0.05, 40)
    means = 0.01 + np.concatenate([half, -half])  # nothing leans
    losses = np.repeat(means, 25)  # wholly alike: eighty numbers are all there is
    bounds = SCORE_TEST.bounds(LossSample(losses, np.repeat(np.arange(80), 25), graded=True), 0.95)
    reach = stats.t.ppf(0.95, 79) * means.std(ddof=1) / math.sqrt(80)
    assert bounds.upper == pytest.approx(means.mean() + reach, rel=1e-3)


def test_few_clusters_bound_nothing_either_way() -> None:
    """Each tenth cluster may be lost as a whole, and not one of twenty in eight evaluations."""
    groups = np.repeat(np.arange(20), 50)
    for losses in (np.zeros(1000), np.tile([1.0, 1.0, 0.0, 0.0], 250)):
        sample = LossSample(losses, groups)
        assert sample.has_few_clusters
        bounds = SCORE_TEST.bounds(sample, 0.95)
        assert (bounds.lower, bounds.upper, SCORE_TEST.p_value(sample, 0.03)) == (-1.0, 1.0, 1.0)
    assert not LossSample(losses, np.repeat(np.arange(100), 10)).has_few_clusters


def test_one_large_cluster_among_single_items_counts_for_what_it_weighs() -> None:
    groups = np.concatenate([np.zeros(500, dtype=int), np.arange(1, 501)])
    assert LossSample(np.zeros(1000), groups).has_few_clusters


def test_the_level_at_which_harm_is_shown_is_where_the_lower_bound_meets_the_limit() -> None:
    random = np.random.default_rng(3)
    losses = random.choice([1.0, -1.0, 0.0], p=(0.2, 0.05, 0.75), size=1600)
    sample = LossSample(losses, np.repeat(np.arange(80), 20))
    level = SCORE_TEST.p_value(sample, 0.1)
    assert SCORE_TEST.bounds(sample, 1.0 - level).lower == pytest.approx(0.1, abs=1e-4)


def test_rare_large_losses_of_graded_scores_pass_no_more_often_than_stated() -> None:
    """Every item moves a little, one in a hundred is lost: without the skewness of that 12 % would pass."""
    random = np.random.default_rng(8)
    small = random.uniform(-0.01, 0.01, size=(600, 500))
    losses = np.where(random.random((600, 500)) < 0.01, 1.0, small)
    passed = [SCORE_TEST.bounds(LossSample(row, graded=True), 0.95).upper < 0.01 for row in losses]
    assert np.mean(passed) < 0.075


def test_clusters_widen_and_never_narrow_the_interval() -> None:
    for likeness in (0.9, 0.3, 1e-3):
        sample = drawn(80, 10, likeness)
        known, unknown = (SCORE_TEST.bounds(s, 0.95) for s in (sample, LossSample(sample.losses)))
        assert known.upper >= unknown.upper
        assert known.lower <= unknown.lower


def test_one_cluster_says_nothing() -> None:
    bounds = SCORE_TEST.bounds(LossSample(np.zeros(500), np.zeros(500, dtype=int)), 0.95)
    assert (bounds.lower, bounds.upper) == (-1.0, 1.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.5]), st.sampled_from([0.0, 1.0])), min_size=2, max_size=60))
def test_clusters_of_one_item_are_no_clusters(scores: list[tuple[float, float]]) -> None:
    def items(side: int, *, clustered: bool) -> list[ScoredItem]:
        return [
            ScoredItem(
                task="t",
                item_id=number,
                fingerprint="",
                score=pair[side],
                generative=False,
                cluster=f"passage {number}" if clustered else "",
            )
            for number, pair in enumerate(scores)
        ]

    plain = compare(items(0, clustered=False), items(1, clustered=False), 0.95)
    assert compare(items(0, clustered=True), items(1, clustered=True), 0.95) == plain
    assert plain.pooled.clusters is None


def test_an_item_without_a_cluster_stands_for_itself() -> None:
    groups = group_numbers(["a", "", "a", ""])
    assert groups is not None
    assert groups[0] == groups[2]
    assert len(set(groups.tolist())) == 3
    assert group_numbers(["", "x", ""]) is None
