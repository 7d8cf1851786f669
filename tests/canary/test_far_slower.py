"""Which limits of a latency are far beyond what stable does."""

from __future__ import annotations

from llm_pipeline.canary.arm_counts import ArmEvents, MetricCounts
from llm_pipeline.canary.arm_metrics import ArmWindow, Histogram
from llm_pipeline.canary.metric_tests import begin_metric, observe_metric
from llm_pipeline.canary.traffic import thresholds_from_counts
from llm_pipeline.config.policy import CanaryPolicy

POLICY = CanaryPolicy(minimum_requests=20)


def test_a_latency_is_far_slower_only_beyond_multiples_of_what_stable_does() -> None:
    """The buckets end where stable's requests do, so no limit is a multiple of its highest quantile."""
    times = Histogram(edges=(10.0, 20.0, 50.0), counts=(500, 950, 1000), total=1000)
    thresholds = thresholds_from_counts(ArmWindow(requests=1000, end_to_end=times), POLICY)
    assert thresholds is not None
    limits = thresholds.metrics[1]
    assert [limit.value for limit in limits.limits] == [10.0, 20.0, 50.0]
    metric = begin_metric(limits, 0.5, thresholds, POLICY)
    slower = MetricCounts(
        name="slow end to end",
        stratum="0",
        candidate=ArmEvents(units=100, events=(80, 60, 0)),
        stable=ArmEvents(units=100, events=(50, 5, 0)),
    )
    for at in range(200):
        metric = observe_metric(metric, [slower], 10.0 * at, 10.0 * at + 10.0)
    assert metric.far_slower(20.0) is None
