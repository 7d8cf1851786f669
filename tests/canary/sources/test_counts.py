"""Counts in the words of the analysis."""

from __future__ import annotations

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary import analysis
from llm_pipeline.canary.arm_metrics import ArmWindow, Histogram
from llm_pipeline.canary.slow_limits import Thresholds
from llm_pipeline.canary.traffic import thresholds_from_counts, window_from_counts
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
    slow = next(metric for metric in thresholds().metrics if metric.name == "slow end to end")
    assert [(limit.value, limit.label) for limit in slow.limits] == [(100.0, "p50"), (250.0, "p90"), (1000.0, "p99")]
    assert thresholds().left_out == ("slow first token: the source has no such buckets",)


def test_multiples_are_edges_too_and_each_edge_is_one_limit():
    few = ArmWindow(requests=60, end_to_end=histogram(58, 60, 60, 60, 60, total=60))
    found = thresholds_from_counts(few, POLICY)
    assert found is not None
    assert [limit.value for limit in found.metrics[1].limits] == [50.0, 100.0, 250.0, 500.0]
    assert [limit.label for limit in found.metrics[1].limits] == ["p50", "2 x p50", "4 x p50", "8 x p50"]


def test_too_few_requests_fix_nothing_and_sessions_cannot_be_counted():
    assert thresholds_from_counts(ArmWindow(requests=60, errors=20), POLICY) is None
    with pytest.raises(ConfigError, match="sessions"):
        thresholds_from_counts(ArmWindow(requests=60), CanaryPolicy(unit="session", session_header="x-session-id"))


def test_a_window_has_errors_and_what_lies_beyond_each_edge():
    arms = {
        "green": ArmWindow(requests=40, errors=3, lost=1, end_to_end=histogram(1, 20, 30, 35, 36, total=37)),
        "blue": ArmWindow(requests=60, end_to_end=histogram(30, 40, 55, 60, 60, total=60)),
    }
    seen = window_from_counts(arms, "green", thresholds(), until=7.0)
    assert (seen.candidate.requests, seen.candidate.errors, seen.candidate.lost) == (40, 3, 1)
    assert (seen.candidate_units, seen.stable_units, seen.until) == (40, 60, 7.0)
    errors, slow = seen.counts
    assert (errors.candidate.events, errors.stable.events) == ((3,), (0,))
    assert (slow.candidate.units, slow.candidate.events) == (37, (17, 7, 1))
    assert (slow.stable.units, slow.stable.events) == (60, (20, 5, 0))


@pytest.mark.parametrize(("errors", "trailing", "all_faults"), [(5, 5, True), (4, 0, False), (0, 0, False)])
def test_the_order_of_failures_is_known_only_when_all_failed(errors, trailing, all_faults):
    seen = window_from_counts({"green": ArmWindow(requests=5, errors=errors)}, "green", thresholds(), until=1.0)
    assert (seen.trailing_faults, seen.all_faults) == (trailing, all_faults)


def test_other_buckets_than_those_of_the_baseline_are_refused():
    other = Histogram(edges=(60.0, 120.0), counts=(1, 2), total=3)
    with pytest.raises(ConfigError, match="no bucket ends at 100 ms, they end at 60, 120"):
        window_from_counts({"green": ArmWindow(requests=3, end_to_end=other)}, "green", thresholds(), until=1.0)


def test_the_analysis_takes_such_windows():
    state = analysis.begin_step(analysis.begin(thresholds(), POLICY), 0.25)
    bad = {"green": ArmWindow(requests=50, errors=25), "blue": ArmWindow(requests=150)}
    for look in range(3):
        state = analysis.observe(state, window_from_counts(bad, "green", thresholds(), until=float(look)))
    errors = next(metric for metric in state.metrics if metric.name == "errors")
    assert errors.largest > 1000
    assert state.step is not None
    assert state.step.candidate.errors == 75
