"""What "slow" means in a canary: fixed before the first step, from stable's own latencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_pipeline.canary.observations import ObservedRequest, quantile
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.stages.contract import Frozen

SLOW_FACTORS = (1.0, 2.0, 4.0, 8.0)
"""A request is judged against several limits at once, multiples of stable's quantile. One limit alone is blind when
the whole machine slows down: once half of stable's requests exceed it, nothing can exceed it twice as often."""

SlowCounts = tuple[int, ...]
"""Requests beyond each limit of `SLOW_FACTORS`."""

NONE_SLOW: SlowCounts = (0,) * len(SLOW_FACTORS)


class Thresholds(Frozen):
    """Beyond what a request is slow; None where stable had too little traffic of that kind."""

    first_token_milliseconds: float | None
    end_to_end_milliseconds: float
    requests: int


def fix_thresholds(requests: Iterable[ObservedRequest], policy: CanaryPolicy) -> Thresholds | None:
    """What "slow" will mean, from stable's requests before the first step; None while there are too few.

    First tokens are judged on streamed answers only, and only if stable had enough of them.
    """
    answered = [request for request in requests if not request.error and not request.cancelled]
    if len(answered) < policy.minimum_requests:
        return None
    first = [r.first_byte_milliseconds for r in answered if r.streaming and r.first_byte_milliseconds is not None]
    enough = len(first) * 5 >= policy.minimum_requests
    return Thresholds(
        first_token_milliseconds=quantile(first, policy.slow_quantile) if enough else None,
        end_to_end_milliseconds=quantile([r.total_milliseconds for r in answered], policy.slow_quantile) or 0.0,
        requests=len(answered),
    )


def beyond(values: Sequence[float], limit: float) -> SlowCounts:
    """How many of the values lie beyond each multiple of a limit."""
    return tuple(sum(value > factor * limit for value in values) for factor in SLOW_FACTORS)
