"""Requests given to the analysis as a controller would: look by look, not hours of traffic at once."""

from __future__ import annotations

from collections.abc import Iterable

from llm_pipeline.canary.access_log import ObservedRequest
from llm_pipeline.canary.analysis import AnalysisState, observe
from llm_pipeline.canary.metrics import Limit, Thresholds, window

LIMITS = Thresholds(
    limits={
        "failed answers": (Limit(),),
        "slow first token": (Limit(milliseconds=50.0, label="p90"), Limit(milliseconds=200.0, label="4 x p90")),
        "slow end": (Limit(milliseconds=100.0, label="p90"), Limit(milliseconds=400.0, label="4 x p90")),
        "empty or cut answers": (Limit(),),
    }
)


def request(arm="blue", *, at=0.0, fault=False, refused=False, total=20.0, first=10.0, **changes) -> ObservedRequest:
    values = {
        "started_at": at,
        "arm": arm,
        "on_trial": arm == "green",
        "fault": fault,
        "error": fault or refused,
        "refused": refused,
        "lost": refused,
        "cancelled": False,
        "streaming": True,
        "first_byte_milliseconds": first,
        "total_milliseconds": total,
    }
    return ObservedRequest(**{**values, **changes})


def watched(state: AnalysisState, requests: Iterable[ObservedRequest]) -> AnalysisState:
    """The analysis after one look for each block of time; the candidate is in green."""
    seconds = state.thresholds.block_seconds
    looks: dict[int, list[ObservedRequest]] = {}
    for one in requests:
        looks.setdefault(int(one.started_at / seconds), []).append(one)
    for _, seen in sorted(looks.items()):
        state = observe(state, window(seen, "green", state.thresholds, 0.0), seconds)
    return state
