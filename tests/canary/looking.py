"""Requests given to the analysis as a controller would: look by look, not hours of traffic at once."""

from __future__ import annotations

from collections.abc import Iterable

from llm_pipeline.canary.analysis import AnalysisState, observe
from llm_pipeline.canary.arm_counts import window
from llm_pipeline.canary.observations import ObservedRequest


def watched(state: AnalysisState, requests: Iterable[ObservedRequest], since: float = 0.0) -> AnalysisState:
    """The analysis after one look for each block of time; the candidate is in green."""
    looks: dict[int, list[ObservedRequest]] = {}
    for request in requests:
        looks.setdefault(int(request.started_at / state.thresholds.block_seconds), []).append(request)
    for _, seen in sorted(looks.items()):
        state = observe(state, window(seen, "green", state.thresholds, since))
    return state
