"""Requests given to the analysis as a controller would: look by look, not hours of traffic at once."""

from __future__ import annotations

from collections.abc import Iterable

from llm_pipeline.canary.analysis import AnalysisState, observe
from llm_pipeline.canary.arm_counts import window
from llm_pipeline.canary.metric_events import Limit, MetricLimits
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.slow_limits import Thresholds
from llm_pipeline.config.policy import CanaryPolicy

POLICY = CanaryPolicy(minimum_bake_seconds=10, maximum_bake_seconds=60, minimum_requests=20)
LIMITS = Thresholds(
    requests=100,
    metrics=(
        MetricLimits(name="errors"),
        MetricLimits(
            name="slow first token", limits=tuple(Limit(value=by * 50.0, label=f"{by} x") for by in (1, 2, 4, 8))
        ),
        MetricLimits(
            name="slow end to end", limits=tuple(Limit(value=by * 100.0, label=f"{by} x") for by in (1, 2, 4, 8))
        ),
    ),
)


def watched(state: AnalysisState, requests: Iterable[ObservedRequest], since: float = 0.0) -> AnalysisState:
    """The analysis after one look for each block of time; the candidate is in green."""
    looks: dict[int, list[ObservedRequest]] = {}
    for request in requests:
        looks.setdefault(int(request.started_at / state.thresholds.block_seconds), []).append(request)
    for _, seen in sorted(looks.items()):
        state = observe(state, window(seen, "green", state.thresholds, since))
    return state
