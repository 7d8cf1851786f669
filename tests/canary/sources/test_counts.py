"""Counts in the words of the analysis."""

from __future__ import annotations

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary import analysis
from llm_pipeline.canary.metrics import ArmWindow, Histogram, Thresholds, thresholds_from_counts, window_from_counts
from llm_pipeline.config.policy import CanaryPolicy

POLICY = CanaryPolicy(minimum_requests=50, slow_quantiles=(0.5, 0.9, 0.99))
EDGES = (50.0, 100.0, 250.0, 500.0, 1000.0)


def histogram(*counts: int, total: int) -> Histogram:
    return Histogram(edges=EDGES, counts=counts, total=total)


def thresholds() -> Thresholds:
    stable = ArmWindow(requests=1000, errors=4, end_to_end=histogram(480, 700, 930, 985, 996, total=996))
    found = thresholds_from_counts(stable, POLICY)
    assert found is not None
    return found


def test_limits_are_the_edges_at_or_above_stables_quantiles():
    slow = thresholds().limits["slow end"]
    assert [(one.milliseconds, one.label) for one in slow] == [(100.0, "p50"), (250.0, "p90"), (1000.0, "p99")]
    assert thresholds().left_out == (
        "slow first token: the source has no such buckets",
        "empty or cut answers: counts do not show them",
    )


def test_the_multiple_is_an_edge_too_and_each_edge_is_one_limit():
    few = ArmWindow(requests=60, end_to_end=histogram(58, 60, 60, 60, 60, total=60))
    found = thresholds_from_counts(few, POLICY)
    assert found is not None
    assert [(one.milliseconds, one.label) for one in found.limits["slow end"]] == [(50.0, "p50"), (250.0, "4 x p50")]


def test_too_few_requests_fix_nothing():
    assert thresholds_from_counts(ArmWindow(requests=60, errors=20), POLICY) is None


def test_a_window_has_failures_and_what_lies_beyond_each_edge():
    arms = {
        "green": ArmWindow(requests=40, errors=3, lost=1, end_to_end=histogram(1, 20, 30, 35, 36, total=37)),
        "blue": ArmWindow(requests=60, end_to_end=histogram(30, 40, 55, 60, 60, total=60)),
    }
    seen = window_from_counts(arms, "green", thresholds())
    assert (seen.candidate.requests, seen.candidate.failed, seen.candidate.lost) == (40, 3, 1)
    failed, slow = seen.counts["failed answers"], seen.counts["slow end"]
    assert (failed.candidate.events, failed.stable.events) == ((3,), (0,))
    assert (slow.candidate.requests, slow.candidate.events) == (37, (17, 7, 1))
    assert (slow.stable.requests, slow.stable.events) == (60, (20, 5, 0))


@pytest.mark.parametrize(("errors", "trailing", "all_faults"), [(5, 5, True), (4, 0, False), (0, 0, False)])
def test_the_order_of_failures_is_known_only_when_all_failed(errors, trailing, all_faults):
    seen = window_from_counts({"green": ArmWindow(requests=5, errors=errors)}, "green", thresholds())
    assert (seen.failed_in_a_row, seen.all_failed) == (trailing, all_faults)


def test_other_buckets_than_those_of_the_baseline_are_refused():
    other = Histogram(edges=(60.0, 120.0), counts=(1, 2), total=3)
    with pytest.raises(ConfigError, match="no bucket ends at 100 ms, they end at 60, 120"):
        window_from_counts({"green": ArmWindow(requests=3, end_to_end=other)}, "green", thresholds())


def test_the_analysis_takes_such_windows():
    state = analysis.begin_step(analysis.begin(thresholds(), POLICY), 0.25)
    bad = {"green": ArmWindow(requests=50, errors=25), "blue": ArmWindow(requests=150)}
    for _ in range(3):
        state = analysis.observe(state, window_from_counts(bad, "green", thresholds()), 15.0)
    assert state.metrics[0].largest > 1000
    assert state.step is not None
    assert state.step.candidate.failed == 75
