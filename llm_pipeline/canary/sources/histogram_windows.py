"""Windows for the analysis from counts of both arms, for routers that do not log single requests.

What only single requests show is left out: sessions, prompt sizes, tokens, empty and truncated answers, and the order
of failures. Latencies are known only at the source's bucket edges, so the limits are edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.arm_counts import ArmCounts, ArmEvents, MetricCounts, Window
from llm_pipeline.canary.metric_events import Limit, MetricLimits, MetricName
from llm_pipeline.canary.router import SlotName, other_slot
from llm_pipeline.canary.slow_limits import (
    REQUESTS_BEYOND,
    SLOW_FACTORS,
    Thresholds,
    block_seconds,
    requests_needed,
)
from llm_pipeline.canary.sources.arm_metrics import ArmWindow, Histogram
from llm_pipeline.config.policy import CanaryPolicy

_STRATUM = "0"


def thresholds_from_counts(stable: ArmWindow, policy: CanaryPolicy) -> Thresholds | None:
    """The latency limits from stable's counts before the first step; None while there are too few.

    A limit is the lowest bucket edge that at least the quantile's share of stable's requests do not exceed, so it lies
    at or above the quantile; quantiles beyond the last edge have no limit.

    Raises:
        ConfigError: The policy counts sessions.
    """
    if policy.unit == "session":
        raise ConfigError("sessions cannot be told apart in counts", hint="unit: request, or a router with a log")
    if stable.requests - stable.errors < policy.minimum_requests:
        return None
    latencies: dict[MetricName, Histogram | None] = {
        "slow first token": stable.first_token,
        "slow end to end": stable.end_to_end,
    }
    limits = {name: _edges(found, policy.slow_quantiles) if found else () for name, found in latencies.items()}
    known = (MetricLimits(name=name, limits=found) for name, found in limits.items() if found)
    return Thresholds(
        requests=stable.requests,
        metrics=(MetricLimits(name="errors"), *known),
        block_seconds=block_seconds(policy),
        left_out=tuple(f"{name}: the source has no such buckets" for name, found in limits.items() if not found),
    )


def window_from_counts(
    arms: Mapping[SlotName, ArmWindow], candidate: SlotName, thresholds: Thresholds, until: float
) -> Window:
    """Both arms between two looks.

    Raises:
        ConfigError: A limit lies on no bucket edge.
    """
    mine = arms.get(candidate, ArmWindow())
    theirs = arms.get(other_slot(candidate), ArmWindow())
    only_faults = mine.errors == mine.requests
    return Window(
        candidate=_counts(mine),
        stable=_counts(theirs),
        trailing_faults=mine.errors if only_faults else 0,
        all_faults=only_faults,
        candidate_units=mine.requests,
        stable_units=theirs.requests,
        counts=tuple(
            MetricCounts(
                name=metric.name, stratum=_STRATUM, candidate=_events(mine, metric), stable=_events(theirs, metric)
            )
            for metric in thresholds.metrics
        ),
        until=until,
    )


def _counts(arm: ArmWindow) -> ArmCounts:
    return ArmCounts(requests=arm.requests, errors=arm.errors, faults=arm.errors, lost=arm.lost)


def _events(arm: ArmWindow, metric: MetricLimits) -> ArmEvents:
    if metric.name == "errors":
        return ArmEvents(units=arm.requests, events=(arm.errors,))
    histogram = arm.first_token if metric.name == "slow first token" else arm.end_to_end
    if histogram is None:
        return ArmEvents(units=0, events=(0,) * len(metric.limits))
    return ArmEvents(units=histogram.total, events=tuple(histogram.beyond(limit.value) for limit in metric.limits))


def _edges(histogram: Histogram, levels: Sequence[float]) -> tuple[Limit, ...]:
    """An edge for each quantile that is known, and for multiples of the highest; the same edge counts once."""
    known = [levels[0], *(level for level in levels[1:] if histogram.total >= requests_needed(level))]
    found: dict[float, str] = {}
    for level in known:
        edge = next(
            (e for e, count in zip(histogram.edges, histogram.counts, strict=True) if count >= level * histogram.total),
            None,
        )
        if edge is not None:
            found.setdefault(edge, f"p{level * 100:g}")
    if not found or histogram.total < REQUESTS_BEYOND:
        return ()
    top, label = list(found.items())[-1]
    for factor in SLOW_FACTORS:
        edge = next((edge for edge in histogram.edges if edge >= factor * top), None)
        if edge is not None:
            found.setdefault(edge, f"{factor:g} x {label}")
    return tuple(Limit(value=edge, label=name) for edge, name in found.items())
