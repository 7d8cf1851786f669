"""How long a load test takes when nothing has to be extended. Pure."""

from __future__ import annotations

from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.config.workload import Workload

ALONE_SECONDS = 20.0
"""Longest closed-loop window (floor and ceiling); half of the workload's window if that is shorter."""

WARM_UP_REQUESTS = 100
CONFIRMATION_MULTIPLE = 2.0
"""Length of the confirmation, by that of the workload's window."""
EXTENSIONS = 3
"""An undecided confirmation is extended up to this multiple of its length."""

_PROBES = 6
_DISCARDED_ROUNDS = 1


def alone_seconds(workload: Workload) -> float:
    """Length of a closed-loop window."""
    return min(ALONE_SECONDS, workload.duration_seconds / 2)


def session_seconds(workload: Workload, policy: LoadTestPolicy) -> float:
    """Seconds of traffic, the usual number of probes included."""
    window, rate = workload.duration_seconds, workload.rate_per_second
    seconds = WARM_UP_REQUESTS / rate + 2 * alone_seconds(workload) + window * (1.0 + CONFIRMATION_MULTIPLE)
    if policy.search is not None:
        seconds += _PROBES * max(policy.search.window_seconds, policy.search.minimum_requests / rate)
    if policy.regression is not None:
        seconds += 2 * (policy.regression.rounds + _DISCARDED_ROUNDS) * policy.regression.window_seconds
    return seconds
