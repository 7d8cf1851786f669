"""The four metrics of a canary: what counts of a request, their limits from stable's own, and both arms' counts.

    failed answers         the server failed it, hidden by fail-over or not; what a server refused (4xx) never counts
    slow first token       of streamed answers, beyond limits that were fixed from stable before the first step
    slow end               of all answers, in the same way
    empty or cut answers   no text, no final chunk, given up by the server, or a loop of repetitions

A request counts from its start. While it hangs it is judged by its age, once that exceeds what may be waited for. If
its user left, its time is judged only if it exceeded the first limit: users do not know their arm, so those of both
are equally patient.

Refused requests are left out everywhere: users who send bad requests send many. A candidate that refuses what stable
answers has fewer requests than its share, and the test of the split tells.

A source of counts (`ArmMetrics`) knows no single requests. What only those show is left out: empty and cut answers,
and the order of failures. Latencies are known at its bucket edges, so the limits are edges. A source without data
raises; it never reports zero errors instead. Windows tile: each begins where the one before it ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from pydantic import Field

from llm_pipeline.base.adapters import Adapter, adapter
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.access_log import ObservedRequest
from llm_pipeline.canary.router import SlotName, TrafficRouter, other_slot
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.config.router_place import MetricSource, MetricSourceModel, RouterPlace
from llm_pipeline.statistics.eprocess import Variation


class SourceDown(Transient):
    """The source does not answer, or has no data, or only old data."""


class Histogram(Frozen):
    """Requests by latency.

    Attributes:
        edges: Upper edges of the buckets in milliseconds, rising, without the infinite one.
        counts: Requests that took no longer than each edge.
        total: All requests.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: int

    def beyond(self, limit: float) -> int:
        """Requests that took longer than so many milliseconds.

        Raises:
            ConfigError: No bucket ends there, so it is not known.
        """
        if not self.total:  # servers have no buckets before their first answer of the kind
            return 0
        for edge, count in zip(self.edges, self.counts, strict=True):
            if math.isclose(edge, limit):
                return self.total - count
        edges = ", ".join(f"{edge:g}" for edge in self.edges)
        raise ConfigError(f"no bucket ends at {limit:g} ms, they end at {edges}", hint="compare at an edge")


class ArmWindow(Frozen):
    """One arm's requests in one window.

    Attributes:
        requests: Requests that the router gave to the arm, without those that were refused (4xx).
        errors: Those that its servers failed, hidden by fail-over or not.
        lost: Errors that users saw.
        first_token: Streamed answers by the time to their first token; None where the source has none.
        end_to_end: Answers by the time to their last byte; None where the source has none.
    """

    requests: int = 0
    errors: int = 0
    lost: int = 0
    first_token: Histogram | None = None
    end_to_end: Histogram | None = None


MetricsWindow = tuple[dict[SlotName, ArmWindow], float]
"""The arms that the source has, since a moment, and until when they are counted now; none while nothing is new."""


class ArmMetrics(Protocol):
    """The interface of every source."""

    def begin(self, seconds_ago: float = 0.0) -> float:
        """Start to count now, or so long ago if the source can look back: call it when a new split is in force.

        Returns:
            Everything before this is counted, in seconds since 1970; in the future until the source can separate old
            requests from new.

        Raises:
            SourceDown: It cannot be read.
        """

    def window(self, since: float) -> MetricsWindow:
        """Both arms since then.

        Raises:
            SourceDown: It does not answer, is empty or stale, or its arms are not the router's.
            ConfigError: It refuses what it is asked.
        """


@dataclass(frozen=True)
class MetricSourceAdapter(Adapter):
    """What an entry point `llm_pipeline.metric_sources` names; see `Adapter`.

    Attributes:
        open: The source of `(source, place, router)`, without asking it anything; raises ConfigError where it does not
            fit the router, or lacks something here.
        probe: As any adapter's, of `(source, place)`.
    """

    config: type[MetricSourceModel]
    open: Callable[[Any, Any, Any], ArmMetrics]


def open_source(source: MetricSource, place: RouterPlace, router: TrafficRouter) -> ArmMetrics:
    """The source, without asking it anything.

    Raises:
        ConfigError: It does not fit the router, or lacks something here.
    """
    if problems := list(source.problems(place)):
        raise ConfigError("\n".join(problems))
    found: MetricSourceAdapter = adapter("metric_sources", source.kind)
    return found.open(source, place, router)


Metric = Literal["failed answers", "slow first token", "slow end", "empty or cut answers"]
METRICS: tuple[Metric, ...] = get_args(Metric)
LATENCIES: tuple[Metric, ...] = ("slow first token", "slow end")

SLOW_FACTOR = 4.0
"""The last limit is this multiple of stable's highest quantile: where a whole machine slows down, all of stable's
requests exceed the quantiles, and nothing can exceed them more often."""

REQUESTS_BEYOND = 5
"""How many of stable's requests must lie beyond a quantile before it becomes a limit."""

LONGEST_WAIT_MILLISECONDS = 30_000.0
"""A request that hangs is judged at this age, or at the last limit if that is less: steps can be this short."""

MOST_IN_FLIGHT = 1024
"""How many requests in flight are remembered; further ones are counted when they end."""

_LOOP = 0.9  # of a text's pieces occurred before in it
_FORGOTTEN_SECONDS = 60.0  # without a new line, by the log's own time: the router that handled the request is gone
_BLOCK_SECONDS, _BLOCKS_A_STEP = 10.0, 6
_FEWEST_SHARE = 0.2  # of the policy's `minimum_requests`, for a metric to be compared


class Limit(Frozen):
    """A limit beyond which a request is an event.

    Attributes:
        milliseconds: 0 for metrics whose events happen or do not.
        label: Where it comes from, e.g. `p90` or `4 x p99` of stable's.
    """

    milliseconds: float = 0.0
    label: str = ""


class Thresholds(Frozen):
    """What is fixed before the first step.

    Attributes:
        limits: Those of each metric that is compared, rising.
        block_seconds: Length of a block of time, the unit of evidence.
        variations: How stable's share of slow requests varied until then.
    """

    limits: dict[Metric, tuple[Limit, ...]]
    block_seconds: float = _BLOCK_SECONDS
    variations: dict[Metric, Variation] = Field(default_factory=dict)


class Counts(Frozen):
    """One arm's requests that a metric can judge, and how many of them exceed each of its limits."""

    requests: int = 0
    events: tuple[int, ...]

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        events = tuple(a + b for a, b in zip(self.events, other.events, strict=True))
        return Counts(requests=self.requests + other.requests, events=events)


class BothCounts(Frozen):
    """One metric's counts of both arms."""

    candidate: Counts
    stable: Counts

    @classmethod
    def none(cls, limits: int) -> BothCounts:
        """Nothing yet."""
        nothing = Counts(events=(0,) * limits)
        return cls(candidate=nothing, stable=nothing)

    def plus(self, other: BothCounts) -> BothCounts:
        """Both together."""
        return BothCounts(candidate=self.candidate.plus(other.candidate), stable=self.stable.plus(other.stable))


class ArmCounts(Frozen):
    """One arm's requests that started, without refused ones; how many its server failed, and its users lost."""

    requests: int = 0
    failed: int = 0
    lost: int = 0

    def plus(self, other: ArmCounts) -> ArmCounts:
        """Both together."""
        return ArmCounts(
            requests=self.requests + other.requests, failed=self.failed + other.failed, lost=self.lost + other.lost
        )


class Hanging(Frozen):
    """A request in flight: when it was seen last (seconds since 1970), and the metrics that have judged it."""

    at: float
    judged: tuple[Metric, ...] = ()


class Window(Frozen):
    """Both arms between two looks.

    Attributes:
        failed_in_a_row: The candidate's failures in a row at the window's end; neither a refusal nor a user who leaves
            ends them.
        all_failed: Every candidate request of the window failed, so the run of the last window goes on.
        unanswered: The candidate's slow requests without an answer when they were judged.
        in_flight: What had not ended at the window's end, by identity.
        saw_anything: Any request, ended or in flight.
        news: False where the source has nothing newer yet than at the last look.
        behind: There is more in the log than a look reads.
    """

    candidate: ArmCounts = ArmCounts()
    stable: ArmCounts = ArmCounts()
    failed_in_a_row: int = 0
    all_failed: bool = True
    counts: dict[Metric, BothCounts] = Field(default_factory=dict)
    unanswered: int = 0
    in_flight: dict[str, Hanging] = Field(default_factory=dict)
    saw_anything: bool = False
    news: bool = True
    behind: bool = False


def window(
    requests: Iterable[ObservedRequest],
    candidate: SlotName,
    thresholds: Thresholds,
    since: float,
    in_flight: dict[str, Hanging] | None = None,
) -> Window:
    """Count both arms over requests that started at or after `since` (before it, another split was in force).

    Args:
        requests: What the log told since the last look: a line when a request ends, one a second while it is in flight.
        candidate: The slot on trial.
        thresholds: What was fixed before the first step.
        since: Seconds since 1970.
        in_flight: What was in flight at the last look.
    """
    current = [request for request in requests if request.started_at >= since]
    newest = max((request.seen_at for request in current), default=0.0)
    waiting = {name: one for name, one in (in_flight or {}).items() if one.at >= newest - _FORGOTTEN_SECONDS}
    values: dict[Metric, dict[bool, list[float]]] = {metric: {True: [], False: []} for metric in thresholds.limits}
    arms, unanswered = {True: ArmCounts(), False: ArmCounts()}, 0
    for request in current:
        before = waiting.pop(request.identity, None)
        if request.in_flight and before is None and (not request.identity or len(waiting) >= MOST_IN_FLIGHT):
            continue  # it counts when it ends
        mine = request.arm == candidate
        judged = before.judged if before else ()
        for metric, limits in thresholds.limits.items():
            value = value_of(request, metric)
            if value is not None and metric not in judged and _tells(request, metric, value, limits):
                judged = (*judged, metric)
                values[metric][mine].append(value)
                slow = metric == "slow end" and value > limits[0].milliseconds
                unanswered += mine and slow and request.first_byte_milliseconds is None
        if request.in_flight:
            waiting[request.identity] = Hanging(at=request.seen_at, judged=judged)
        arms[mine] = arms[mine].plus(
            ArmCounts(
                requests=int(before is None and not request.refused),
                failed=int(request.fault),
                lost=int(request.fault and request.lost),
            )
        )
    told = [r for r in current if r.arm == candidate and not (r.in_flight or r.cancelled or r.refused)]
    told.sort(key=lambda request: request.started_at)
    in_a_row = next((n for n, request in enumerate(reversed(told)) if not request.fault), len(told))
    return Window(
        candidate=arms[True],
        stable=arms[False],
        failed_in_a_row=in_a_row,
        all_failed=in_a_row == len(told),
        counts={
            metric: BothCounts(
                candidate=count(values[metric][True], limits), stable=count(values[metric][False], limits)
            )
            for metric, limits in thresholds.limits.items()
        },
        unanswered=unanswered,
        in_flight=waiting,
        saw_anything=bool(current),
    )


def value_of(request: ObservedRequest, metric: Metric) -> float | None:
    """The value that is compared with a metric's limits: milliseconds, or 1 for an event; None if there is none.

    The time of a request that has not ended, or whose user left, is a lower bound.
    """
    unanswered = request.in_flight or request.cancelled
    if metric == "failed answers":
        return None if unanswered or request.refused else float(request.fault)
    if request.error or request.by_status_only:
        return None
    if metric == "slow end":
        return request.total_milliseconds
    if metric == "slow first token":
        first = request.total_milliseconds if unanswered else None
        first = first if request.first_byte_milliseconds is None else request.first_byte_milliseconds
        return first if request.streaming else None
    if unanswered or request.truncated is None:
        return None
    return float(request.truncated or bool(request.empty) or (request.repetition or 0.0) > _LOOP)


def _tells(request: ObservedRequest, metric: Metric, value: float, limits: Sequence[Limit]) -> bool:
    """Whether a time is known, or already exceeds what may be waited for."""
    known = metric == "slow first token" and request.first_byte_milliseconds is not None
    if known or not (request.in_flight or request.cancelled):
        return True
    first, last = limits[0].milliseconds, limits[-1].milliseconds
    return value > (first if request.cancelled else max(first, min(last, LONGEST_WAIT_MILLISECONDS)))


def count(values: Sequence[float], limits: Sequence[Limit]) -> Counts:
    """How many of the values exceed each of the limits."""
    events = tuple(sum(value > limit.milliseconds for value in values) for limit in limits)
    return Counts(requests=len(values), events=events)


def fix_thresholds(requests: Iterable[ObservedRequest], policy: CanaryPolicy) -> Thresholds | None:
    """What "slow" will mean, from stable's requests before the first step; None while there are too few.

    A metric is compared only if stable had enough requests for it: first tokens need streamed answers, and the answers'
    text a router that can read it.
    """
    answered = [request for request in requests if not (request.in_flight or request.error or request.cancelled)]
    if len(answered) < policy.minimum_requests:
        return None
    limits: dict[Metric, tuple[Limit, ...]] = {}
    for metric in METRICS:
        values = [value for request in answered if (value := value_of(request, metric)) is not None]
        if len(values) >= _FEWEST_SHARE * policy.minimum_requests:
            slow = metric in LATENCIES
            limits[metric] = _slow_limits(values, policy.slow_quantiles) if slow else (Limit(),)
    seconds = block_seconds(policy)
    return Thresholds(
        limits=limits,
        block_seconds=seconds,
        variations={
            metric: _learned(answered, metric, limits[metric], seconds) for metric in LATENCIES if metric in limits
        },
    )


def _slow_limits(values: Sequence[float], levels: Sequence[float]) -> tuple[Limit, ...]:
    """The quantiles that are known, the first in any case, and a multiple of the highest of them."""
    known = [levels[0], *(level for level in levels[1:] if len(values) >= requests_needed(level))]
    quantiles = [Limit(milliseconds=quantile(values, level) or 0.0, label=f"p{level * 100:g}") for level in known]
    top = quantiles[-1]
    return (*quantiles, Limit(milliseconds=SLOW_FACTOR * top.milliseconds, label=f"{SLOW_FACTOR:g} x {top.label}"))


def _learned(requests: Sequence[ObservedRequest], metric: Metric, limits: Sequence[Limit], seconds: float) -> Variation:
    """How stable varied, by blocks of time; the oldest block, which is not complete, is left out."""
    until = max(request.started_at for request in requests)
    blocks: dict[int, list[float]] = {}
    for request in requests:
        if (value := value_of(request, metric)) is not None:
            blocks.setdefault(int((until - request.started_at) / seconds), []).append(value)
    counted = (count(blocks.get(number, []), limits) for number in reversed(range(max(blocks))))
    return Variation.learned([(block.requests, block.events) for block in counted], len(limits))


def quantile(values: Sequence[float], level: float) -> float | None:
    """The smallest value that at least `level` of the values do not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(level * len(values)) - 1)]


def requests_needed(level: float) -> int:
    """How many of stable's requests make a quantile a limit; 500 for 0.99."""
    return math.ceil(REQUESTS_BEYOND / (1.0 - level) - 1e-9)


def block_seconds(policy: CanaryPolicy) -> float:
    """The length of a block of time: 10 s, or so short that the shortest step has six."""
    return min(_BLOCK_SECONDS, policy.minimum_bake_seconds / _BLOCKS_A_STEP)


def thresholds_from_counts(stable: ArmWindow, policy: CanaryPolicy) -> Thresholds | None:
    """The latency limits from stable's counts before the first step; None while there are too few.

    A limit is the lowest bucket edge that at least the quantile's share of stable's requests do not exceed, so it lies
    at or above the quantile; quantiles beyond the last edge have no limit. Answers' text is not known.

    Raises:
        SourceDown: It has a histogram that tells no limit; only streamed answers there need not be.
    """
    if stable.requests - stable.errors < policy.minimum_requests:
        return None
    histograms: dict[Metric, Histogram | None] = {"slow first token": stable.first_token, "slow end": stable.end_to_end}
    limits: dict[Metric, tuple[Limit, ...]] = {"failed answers": (Limit(),)}
    for name, one in histograms.items():
        if one is None or (name == "slow first token" and one.total < REQUESTS_BEYOND):
            continue
        limits[name] = _edges(one, policy.slow_quantiles)
        if not limits[name]:
            words = f"stable tells no limit for a {name}: its buckets hold {one.total} of {stable.requests} requests"
            raise SourceDown(words, hint="name a `_bucket` series whose edges go beyond the time of most answers")
    return Thresholds(limits=limits, block_seconds=block_seconds(policy))


def window_from_counts(arms: Mapping[SlotName, ArmWindow], candidate: SlotName, thresholds: Thresholds) -> Window:
    """Both arms between two looks.

    Raises:
        ConfigError: A limit lies on no bucket edge, or errors are counted beside the requests.
    """
    for slot, arm in arms.items():
        if arm.errors > arm.requests:
            words = f"slot {slot} has {arm.errors} errors in {arm.requests} requests"
            raise ConfigError(words, hint="`requests` of the metric source has to count the failed ones, too")
    mine = arms.get(candidate, ArmWindow())
    theirs = arms.get(other_slot(candidate), ArmWindow())
    all_failed = mine.errors == mine.requests
    return Window(
        candidate=ArmCounts(requests=mine.requests, failed=mine.errors, lost=mine.lost),
        stable=ArmCounts(requests=theirs.requests, failed=theirs.errors, lost=theirs.lost),
        failed_in_a_row=mine.errors if all_failed else 0,
        all_failed=all_failed,
        counts={
            metric: BothCounts(candidate=_counts(mine, metric, limits), stable=_counts(theirs, metric, limits))
            for metric, limits in thresholds.limits.items()
        },
        saw_anything=mine.requests + theirs.requests > 0,
        news=bool(arms),
    )


def _counts(arm: ArmWindow, metric: Metric, limits: Sequence[Limit]) -> Counts:
    if metric == "failed answers":
        return Counts(requests=arm.requests, events=(arm.errors,))
    histogram = arm.first_token if metric == "slow first token" else arm.end_to_end
    if histogram is None:
        return Counts(events=(0,) * len(limits))
    return Counts(requests=histogram.total, events=tuple(histogram.beyond(limit.milliseconds) for limit in limits))


def _edges(histogram: Histogram, levels: Sequence[float]) -> tuple[Limit, ...]:
    """An edge for each quantile that is known, and for a multiple of the highest; the same edge counts once."""
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
    edge = next((edge for edge in histogram.edges if edge >= SLOW_FACTOR * top), None)
    if edge is not None:
        found.setdefault(edge, f"{SLOW_FACTOR:g} x {label}")
    return tuple(Limit(milliseconds=edge, label=name) for edge, name in found.items())
