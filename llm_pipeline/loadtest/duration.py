"""How long a load test takes, how many requests it has, and how many its claim needs. Pure."""

from __future__ import annotations

import math

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.config.workload import Workload
from llm_pipeline.statistics.intervals import critical_value

ALONE_SECONDS = 20.0
"""Longest closed-loop window (floor and ceiling); half of the workload's window if that is shorter."""

WARM_UP_REQUESTS = 100
_WINDOWS_A_DURATION = 6
"""Windows of the confirmation that are as long as the workload's window together."""

_PROBES = 6
_DISCARDED_ROUNDS = 1


def alone_seconds(workload: Workload) -> float:
    """Length of a closed-loop window."""
    return min(ALONE_SECONDS, workload.duration_seconds / 2)


def window_seconds(workload: Workload) -> float:
    """Length of each window of the confirmation where requests do not wait long for one another."""
    return workload.duration_seconds / _WINDOWS_A_DURATION


def session_seconds(workload: Workload, policy: LoadTestPolicy) -> float:
    """Seconds of traffic, the usual number of probes included, if no window has to grow."""
    rate, confirmation = workload.rate_per_second, (policy.windows + 1) * window_seconds(workload)
    seconds = WARM_UP_REQUESTS / rate + 2 * alone_seconds(workload) + workload.duration_seconds + confirmation
    if policy.search is not None:
        seconds += _PROBES * max(policy.search.window_seconds, policy.search.minimum_requests / rate)
    if policy.regression is not None:
        seconds += 2 * (policy.regression.rounds + _DISCARDED_ROUNDS) * policy.regression.window_seconds
    return seconds


class SampleSize(Frozen):
    """What the load gate needs for a GO at the workload's rate, and what it has.

    Attributes:
        windows: Windows that are judged.
        requests: Requests in all of them.
        needed: Requests in all that show the attainment when none misses, and the tolerated share of failures when none
            fails.
        needed_with_misses: The same when half of the tolerated share of misses does miss.
    """

    windows: int
    requests: int
    needed: int
    needed_with_misses: int


def sample_size(workload: Workload, policy: LoadTestPolicy) -> SampleSize:
    """The requests of a load test, if no window has to grow."""
    seconds = policy.windows * window_seconds(workload)
    normal, miss, fault = critical_value(policy.confidence), 1.0 - policy.attainment, policy.maximum_error_fraction
    needed = normal**2 * (1.0 - miss) / miss
    failures = normal**2 * (1.0 - fault) / fault if fault else 0.0
    return SampleSize(
        windows=policy.windows,
        requests=round(workload.rate_per_second * seconds * (1.0 - workload.cancelled_share)),
        needed=math.ceil(max(needed, failures)),
        needed_with_misses=math.ceil(max(4.0 * needed, failures)),
    )


def require_enough(workload: Workload, policy: LoadTestPolicy) -> None:
    """Refuse a load test that can never say GO, whatever the server does.

    Raises:
        ConfigError: Its windows have too few requests.
    """
    size = sample_size(workload, policy)
    if size.requests < size.needed:
        claim = f"{100 * policy.attainment:g} % at {100 * policy.confidence:g} % confidence"
        if policy.maximum_error_fraction:
            claim += f", with at most {100 * policy.maximum_error_fraction:g} % failed"
        seconds = workload.duration_seconds * size.needed / max(1, size.requests)
        raise ConfigError(
            f"{size.requests} requests in {size.windows} windows can never show {claim}: {size.needed} are needed when "
            "none misses",
            where="workload and policy.load_test",
            hint=f"duration_seconds of {math.ceil(seconds)} or more, more windows, a higher rate, a lower attainment "
            "or confidence, or a larger maximum_error_fraction; four times that leaves room for misses",
        )
