"""What "slow", "short" and "long" mean in a canary: fixed before the first step, from stable's own requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.metric_events import (
    CONTENTS,
    LATENCIES,
    RARE,
    Limit,
    MetricLimits,
    MetricName,
    Unit,
    beyond,
    client_of,
    group_of,
    rare_kinds,
    unit_of,
    value_of,
    values_of,
)
from llm_pipeline.canary.observations import ObservedRequest, quantile
from llm_pipeline.canary.sessions import Voters, by_session, vote_of
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.spread import BLOCK_SECONDS, Spread

SLOW_FACTORS = (2.0, 4.0, 8.0)
"""A request is judged against multiples of stable's highest quantile, too. The quantiles alone are blind when the
whole machine slows down: once all of stable's requests exceed them, nothing can exceed them more often."""

REQUESTS_BEYOND = 5
"""How many of stable's requests must lie beyond a quantile before it becomes a limit."""

LENGTH_QUANTILES: dict[MetricName, float] = {"short answers": 0.1, "long answers": 0.9}
"""Of stable's output tokens: answers below the one are short, beyond the other long."""

_BLOCKS_A_STEP = 6
_MOST_BLOCKS = 4096

_OF_KINDS = (0.5, 0.9)
"""Quantiles of a kind's own times that are its limits."""

CONTENT_SLACK = 0.2
"""How far the repetitive or odd share of a text may exceed that of nearly all of stable's answers."""

_NEARLY_ALL = 0.9
_OTHERS: tuple[MetricName, ...] = tuple(name for name in get_args(MetricName) if name != "errors")
_ONE = "the arms without any one client: the router does not identify clients, or one of them sends most requests"
_STRATA = 3
"""Classes of prompts by size: requests are compared within them, and each has as many of stable's requests."""

_MOSTLY = 0.5  # an event of most of stable's answers says nothing, e.g. from a server without finish reasons


class Thresholds(Frozen):
    """The limits and units that are fixed before the first step.

    Attributes:
        requests: Stable's requests that it was fixed from.
        metrics: What is compared, each with its limits; errors first.
        long_bytes: The largest request size outside the longest tenth; None if sizes are too alike.
        strata_bytes: Largest request sizes of all classes of prompts but the last, rising.
        unit: What counts once.
        session_seconds: How long a session is observed.
        block_seconds: Length of a block of time, the unit of evidence on latencies.
        learned: How stable varied over time before the first step, by the metrics' titles; see `spread`.
        clients: Clients are identified and none sends most of the requests, so that no single one may decide.
        left_out: What is not compared, and why, for people.
    """

    requests: int
    metrics: tuple[MetricLimits, ...]
    strata_bytes: tuple[int, ...] = ()
    long_bytes: int | None = None
    unit: Literal["request", "session"] = "request"
    session_seconds: float = 0.0
    block_seconds: float = BLOCK_SECONDS
    learned: dict[str, Spread] = Field(default_factory=dict)
    clients: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def first_token_milliseconds(self) -> float | None:
        """The first limit of the time to the first token; None where it is not compared."""
        return self._first("slow first token")

    @property
    def end_to_end_milliseconds(self) -> float | None:
        """The first limit of the time to the last byte."""
        return self._first("slow end to end")

    def _first(self, name: MetricName) -> float | None:
        return next((metric.limits[0].value for metric in self.metrics if metric.name == name), None)


def fix_thresholds(requests: Iterable[ObservedRequest], policy: CanaryPolicy) -> Thresholds | None:
    """What "slow" will mean, from stable's requests before the first step; None while there are too few.

    A metric is compared only if stable had enough requests for it: first tokens and time per output token need streamed
    answers, and metrics of the text need answers that the router can read.
    """
    stable = list(requests)
    asked = [request for request in stable if not request.error]
    answered = [request for request in asked if not request.cancelled]
    if len(answered) < policy.minimum_requests:
        return None
    strata = _strata([request.request_bytes for request in answered])
    long_bytes = _long_bytes([request.request_bytes for request in answered])
    units = [_baseline_unit(request, strata, long_bytes) for request in asked]
    if policy.unit == "session":
        units = by_session(asked, units, policy.session_seconds)
    votes = (vote_of(request, on_trial=False) for request in stable)
    units += Voters().observe(vote for vote in votes if vote is not None)[1]
    values = {name: [v for unit in units if (v := value_of(unit, name)) is not None] for name in _OTHERS}
    limits = {name: _limits(name, found, policy) for name, found in values.items()}
    metrics, clients = (*_metrics(limits), *_of_kinds(units, policy)), _told_apart(stable)
    return Thresholds(
        requests=len(answered),
        metrics=metrics,
        strata_bytes=strata,
        long_bytes=long_bytes,
        unit=policy.unit,
        session_seconds=policy.session_seconds if policy.unit == "session" else 0.0,
        block_seconds=block_seconds(policy),
        learned=_learned(stable, metrics, lambda request: _baseline_unit(request, strata, long_bytes), policy),
        clients=clients,
        left_out=(
            *_left_out({name: len(values[name]) for name in _OTHERS}, limits, policy),
            *([] if clients else [_ONE]),
        ),
    )


def _told_apart(requests: Sequence[ObservedRequest]) -> bool:
    """Whether requests come from several known clients, none of which sends most of them (as a gateway would)."""
    clients = Counter(map(client_of, requests))
    known = len(requests) - clients.pop(None, 0)
    groups = {group_of(client) for client in clients}
    return known > _MOSTLY * len(requests) and len(groups) > 1 and max(clients.values()) < _MOSTLY * len(requests)


def _of_kinds(units: Sequence[Unit], policy: CanaryPolicy) -> Iterator[MetricLimits]:
    """Tests of rare kinds of requests: errors, and the time to the last byte by limits of the kind."""
    answers = [unit for unit in units if unit.end_to_end is not None]
    for kind in rare_kinds((unit.kinds for unit in answers), policy.minimum_requests):
        yield MetricLimits(name="errors", kind=kind)
        times = [unit.end_to_end for unit in answers if unit.end_to_end is not None and kind in unit.kinds]
        yield MetricLimits(name="slow end to end", kind=kind, limits=_slow_limits(times, _OF_KINDS))


def _long_bytes(sizes: Sequence[int]) -> int | None:
    """None where a tenth of the requests is no longer than all others."""
    edge = int(quantile(sizes, 0.9) or 0)
    return edge if edge < max(sizes) else None


def _baseline_unit(request: ObservedRequest, strata: Sequence[int], long_bytes: int | None) -> Unit:
    """The unit of one of stable's requests; one that its user abandoned has no latency."""
    timed = not request.cancelled
    return unit_of(
        request, on_trial=False, strata_bytes=strata, long_bytes=long_bytes, first_token=timed, end_to_end=timed
    )


def _learned(
    requests: Sequence[ObservedRequest],
    metrics: Iterable[MetricLimits],
    unit: Callable[[ObservedRequest], Unit],
    policy: CanaryPolicy,
) -> dict[str, Spread]:
    """How stable varied, by blocks of time; a session has its parts in the blocks of its requests."""
    seconds, until = block_seconds(policy), max(request.started_at for request in requests)
    blocks: dict[int, list[ObservedRequest]] = {}
    for request in requests:
        blocks.setdefault(int((until - request.started_at) / seconds), []).append(request)
    spreads = {metric.title: (metric, Spread.start(len(metric.limits))) for metric in metrics}
    for number in reversed(range(min(max(blocks), _MOST_BLOCKS))):  # the oldest one is not complete
        here = blocks.get(number, [])
        units = list(map(unit, here))
        if policy.unit == "session":
            units = by_session(here, units, policy.session_seconds)
        for title, (metric, spread) in spreads.items():
            values = values_of(units, metric)
            spreads[title] = metric, spread.observe(len(values), beyond(values, metric))
    return {title: spread for title, (_, spread) in spreads.items()}


def block_seconds(policy: CanaryPolicy) -> float:
    """The length of a block: short enough for a step to have several, because a single one decides nothing."""
    return min(policy.block_seconds, policy.minimum_bake_seconds / _BLOCKS_A_STEP)


def every_metric(policy: CanaryPolicy) -> Thresholds:
    """Thresholds for plans: as if stable had enough requests of all kinds; the limits' values mean nothing."""
    enough = [0.0] * max(policy.minimum_requests, requests_needed(policy.slow_quantiles[-1]), requests_needed(0.9))
    metrics = _metrics({name: _limits(name, enough, policy) for name in _OTHERS})
    return Thresholds(requests=len(enough), metrics=metrics, block_seconds=block_seconds(policy))


def requests_needed(level: float) -> int:
    """How many of stable's requests make a quantile a limit; 500 for 0.99."""
    return math.ceil(REQUESTS_BEYOND / (1.0 - level) - 1e-9)


def _metrics(limits: Mapping[MetricName, tuple[Limit, ...]]) -> tuple[MetricLimits, ...]:
    others = (MetricLimits(name=name, limits=found) for name, found in limits.items() if found)
    return (MetricLimits(name="errors"), *others)


def _limits(name: MetricName, values: Sequence[float], policy: CanaryPolicy) -> tuple[Limit, ...]:
    """A metric's limits; empty if stable has too few such requests."""
    if 5 * len(values) < policy.minimum_requests:
        return ()
    if name in CONTENTS:
        return _content_limit(values)
    if name in RARE:
        return (Limit(),) if sum(values) < _MOSTLY * len(values) else ()
    if name not in LENGTH_QUANTILES:
        return _slow_limits(values, policy.slow_quantiles)
    level = LENGTH_QUANTILES[name]
    if len(values) < requests_needed(max(level, 1.0 - level)):
        return ()
    return (Limit(value=quantile(values, level) or 0.0, label=_label(level)),)


def _content_limit(values: Sequence[float]) -> tuple[Limit, ...]:
    """A limit far beyond nearly all of stable's answers: another style is no fault, garbage is."""
    if len(values) < requests_needed(_NEARLY_ALL):
        return ()
    value = (quantile(values, _NEARLY_ALL) or 0.0) + CONTENT_SLACK
    return (Limit(value=value, label=f"{_label(_NEARLY_ALL)} + {CONTENT_SLACK:g}"),) if value < 1.0 else ()


def _slow_limits(values: Sequence[float], levels: Sequence[float]) -> tuple[Limit, ...]:
    """The quantiles that are known, the first in any case, and multiples of the highest of them."""
    known = [levels[0], *(level for level in levels[1:] if len(values) >= requests_needed(level))]
    quantiles = [Limit(value=quantile(values, level) or 0.0, label=_label(level)) for level in known]
    top = quantiles[-1]
    multiples = (Limit(value=by * top.value, label=f"{by:g} x {top.label}") for by in SLOW_FACTORS)
    return (*quantiles, *multiples)


def _left_out(
    requests: Mapping[MetricName, int], limits: Mapping[MetricName, tuple[Limit, ...]], policy: CanaryPolicy
) -> tuple[str, ...]:
    """What is not compared, a sentence for each reason."""
    names: dict[str, list[str]] = {}
    for name, found in limits.items():
        if (reason := _why_left_out(name, requests[name], found, policy)) is not None:
            names.setdefault(reason, []).append(name)
    return tuple(f"{', '.join(metrics)}{reason}" for reason, metrics in names.items())


def _why_left_out(name: MetricName, requests: int, limits: Sequence[Limit], policy: CanaryPolicy) -> str | None:
    """Why not all of a metric is compared; None when all of it is."""
    if not limits:
        return f": {requests} of stable's requests show it: too few, or all alike"
    missing = [level for level in policy.slow_quantiles[1:] if requests < requests_needed(level)]
    if name not in LATENCIES or not missing:
        return None
    levels = " and ".join(map(_label, missing))
    return f" beyond {levels}: {requests} of stable's requests, {requests_needed(missing[0])} are needed"


def _strata(sizes: Sequence[int]) -> tuple[int, ...]:
    """Request sizes that split stable's requests into equally large classes; fewer where sizes are alike."""
    edges = {int(quantile(sizes, number / _STRATA) or 0) for number in range(1, _STRATA)}
    return tuple(sorted(edges - {max(sizes)}))


def _label(level: float) -> str:
    return f"p{level * 100:g}"
