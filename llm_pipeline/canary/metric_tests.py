"""The tests of one metric over a whole canary: per limit, with an allowance for variation over time.

Correlated requests count for less in an e-value (see `spread`): stable's blocks of time before and since the first
step show how much a single server varies, and no single block can add much evidence on latencies. Errors have no such
cap: a burst of errors must be seen at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.arm_counts import MetricCounts
from llm_pipeline.canary.metric_events import LATENCIES, RARE, MetricLimits, MetricName, title_of
from llm_pipeline.canary.slow_limits import LENGTH_QUANTILES, Thresholds
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import LevelTest, RateTest
from llm_pipeline.statistics.spread import Pace, Spread, independence

MOST_A_BLOCK = 2.0
"""The most that one block of time adds to the logarithm of an e-value of common events: at least four are needed."""

_FAR_LIMITS = 2
"""The last limits of a latency: four and eight times the highest of stable's quantiles."""

_FAR_FACTOR = 4.0

_MOST, _HARDLY_ANY = 0.5, 0.1

_MOST_HELD = 0.95
"""Levels above this are not used: nothing can exceed them by much."""

LENGTH_RATIO = 2.0
"""Tolerated ratio of the odds of an answer that is longer than nine tenths of stable's, or shorter."""

NEGLIGIBLE_SHARE = 0.005
"""Of errors and odd answers: the least level that the last step holds a candidate to."""

_USUAL_QUANTILES = ("p90", "p95", "p50")


class LimitState(Frozen):
    """The test of one metric at one limit, over the whole canary.

    Attributes:
        independence: Weight of a request's evidence, between 0 and 1; see `spread`.
        held: At the last step: the test against the level that stable showed at earlier steps.
        held_independence: Weight of a request's evidence there.
    """

    regressed: RateTest
    candidate_events: int = 0
    stable_events: int = 0
    independence: float = 1.0
    held: LevelTest | None = None
    held_independence: float = 1.0

    @property
    def value(self) -> float:
        """The e-value that the candidate is worse than tolerated at this limit; the mean of its two tests."""
        compared = self.regressed.tempered(self.independence)
        return compared if self.held is None else (compared + self.held_value) / 2.0

    @property
    def held_value(self) -> float:
        """The e-value that it is worse than its level; 1 where there is none."""
        return self.held.tempered(self.held_independence, self.regressed.most(1)) if self.held else 1.0

    def block_ends(self, blocks: int) -> LimitState:
        """The test after so many blocks of time ended."""
        held = self.held and self.held.block_ends(self.regressed.most(blocks))
        return self.model_copy(update={"regressed": self.regressed.block_ends(blocks), "held": held})

    def tempered(self, spread: Spread, blocks: float, at: int, *, cautious: bool) -> LimitState:
        """The test with the current weights of evidence."""
        variance = spread.variance(at, blocks, cautious=cautious)
        update = {"independence": independence(self.regressed.information, variance)}
        if self.held is not None:  # from another time than stable's: load may have differed
            variance = spread.variance(at, 1.0, cautious=cautious)
            update["held_independence"] = independence(self.held.information, variance)
        return self.model_copy(update=update)


class MetricState(Frozen):
    """One metric's tests over the whole canary.

    Attributes:
        kind: Of requests, which the metric is about; empty for all.
        alpha_share: The part of the policy's `alpha` that the metric may spend.
        limits: One test for each limit.
        candidate_units: Requests, or sessions, with a value of the metric.
        largest: The largest mean of the limits' e-values so far; a mean of e-processes is an e-process.
        usual: Index of the limit that is told where none has any evidence.
        block_seconds: Length of a block of time.
        far_limits: How many of the last limits are far beyond what stable does; of counts, buckets may end before.
        spread: How stable varies over time, before the canary and since.
        pace: How the evidence is spread over time.
    """

    name: MetricName
    kind: str = ""
    alpha_share: float
    limits: tuple[LimitState, ...]
    candidate_units: int = 0
    stable_units: int = 0
    largest: float = 1.0
    usual: int
    block_seconds: float
    far_limits: int = _FAR_LIMITS
    spread: Spread
    pace: Pace = Pace()

    @property
    def title(self) -> str:
        """For people: `errors`, or `errors of streamed answers`."""
        return title_of(self.name, self.kind)

    @property
    def value(self) -> float:
        """The e-value that the candidate is worse than tolerated."""
        return sum(limit.value for limit in self.limits) / len(self.limits)

    def far_slower(self, required: float) -> int | None:
        """The far limit that most of the candidate's requests exceed and hardly any of stable's; None if there is none.

        A server with occasional stalls varies so much at these limits that the full allowance would hide a candidate
        that is always many times slower. Stalls do not fill most of a comparison, so here the e-value is used without
        the allowance; it still needs several blocks of time and several clients.

        Args:
            required: The e-value at which the metric has regressed.
        """
        if self.name not in LATENCIES or not (self.candidate_units and self.stable_units):
            return None
        for at in range(len(self.limits) - self.far_limits, len(self.limits)):
            limit = self.limits[at]
            most = limit.candidate_events >= _MOST * self.candidate_units
            hardly_any = limit.stable_events <= _HARDLY_ANY * self.stable_units
            if most and hardly_any and limit.regressed.value >= required:
                return at
        return None

    @property
    def telling(self) -> int:
        """Index of the limit with the most evidence against the candidate; by default the 0.9 quantile."""
        values = [limit.value for limit in self.limits]
        return values.index(max(values)) if max(values) > 1.0 else self.usual


def begin_metric(metric: MetricLimits, alpha_share: float, thresholds: Thresholds, policy: CanaryPolicy) -> MetricState:
    """A metric's tests before the first step: without data, except what is known of stable's variation."""
    rare = metric.name in RARE
    ratio = LENGTH_RATIO if metric.name in LENGTH_QUANTILES else policy.slow_ratio
    ratio, law, most = (policy.error_ratio, "rates", None) if rare else (ratio, "odds", MOST_A_BLOCK)
    labels = [limit.label for limit in metric.limits]
    regressed = RateTest.start(ratio, law, most)  # type: ignore[arg-type]
    return MetricState(
        name=metric.name,
        kind=metric.kind,
        alpha_share=alpha_share,
        limits=(LimitState(regressed=regressed),) * len(metric.limits),
        usual=next((labels.index(label) for label in _USUAL_QUANTILES if label in labels), 0),
        block_seconds=thresholds.block_seconds,
        far_limits=_far_limits(metric),
        spread=thresholds.learned.get(metric.title) or Spread.start(len(metric.limits)),
    )


def _far_limits(metric: MetricLimits) -> int:
    """How many of the last limits are as far beyond the highest quantile as they should be."""
    highest = max([limit.value for limit in metric.limits if " x" not in limit.label] or [metric.limits[0].value])
    return sum(limit.value >= _FAR_FACTOR * highest for limit in metric.limits[-_FAR_LIMITS:])


def observe_metric(metric: MetricState, counts: Iterable[MetricCounts], began: float, until: float) -> MetricState:
    """All strata of the window first, then the e-value: a look sees whole windows.

    Args:
        metric: Before the window.
        counts: Of all metrics.
        began: The window's beginning, seconds since 1970.
        until: Its end; 0 if nothing was seen.
    """
    for stratum in counts:
        about = (stratum.name, stratum.kind) == (metric.name, metric.kind)
        if about and (stratum.candidate.units or stratum.stable.units):
            metric = _observe_stratum(metric, stratum, began)
    metric = _looked_at(metric, until)
    return metric.model_copy(update={"largest": max(metric.largest, metric.value)})


def hold(metric: MetricState) -> MetricState:
    """The metric at the last step, compared with stable's earlier steps: stable has little traffic left.

    The level is the upper end of what stable's share may be, times the tolerated ratio; squared for latencies, since
    time has passed and the candidate has all the load now.
    """
    limits = tuple(limit.model_copy(update={"held": _level(metric, limit)}) for limit in metric.limits)
    return metric.model_copy(update={"limits": limits})


def _level(metric: MetricState, limit: LimitState) -> LevelTest | None:
    if not metric.stable_units:
        return None
    events, ratio = limit.stable_events, limit.regressed.ratio
    share = min(_MOST_HELD, (events + 2.0 * (1.0 + math.sqrt(events + 1.0))) / metric.stable_units)
    if metric.name in RARE:
        level = max(NEGLIGIBLE_SHARE, ratio * share)
    else:
        odds = ratio**2 * share / (1.0 - share)
        level = odds / (1.0 + odds)
    return LevelTest(limit=level) if level < _MOST_HELD else None


def _looked_at(metric: MetricState, until: float) -> MetricState:
    """End the block of time if it is over, and update the weights of evidence."""
    pace, spread, limits = metric.pace.set_back(until), metric.spread, metric.limits
    if ends := pace.length(until, metric.block_seconds):
        spread = spread.observe(pace.stable, pace.events, ends) if pace.events else spread
        pace = pace.closed(ends, metric.block_seconds)
        limits = tuple(limit.block_ends(ends) for limit in limits)
    cautious, blocks = metric.name not in RARE, pace.blocks
    limits = tuple(limit.tempered(spread, blocks, at, cautious=cautious) for at, limit in enumerate(limits))
    return metric.model_copy(update={"limits": limits, "spread": spread, "pace": pace})


def _observe_stratum(metric: MetricState, counts: MetricCounts, began: float) -> MetricState:
    mine, theirs = counts.candidate, counts.stable
    limits = tuple(
        limit.model_copy(
            update={
                "regressed": limit.regressed.observe(
                    candidate_events=my_events,
                    stable_events=their_events,
                    candidate_requests=mine.units,
                    stable_requests=theirs.units,
                    stratum=counts.stratum,
                    group=counts.group,
                ),
                "held": limit.held and limit.held.observe(events=my_events, requests=mine.units, group=counts.group),
                "candidate_events": limit.candidate_events + my_events,
                "stable_events": limit.stable_events + their_events,
            }
        )
        for limit, my_events, their_events in zip(metric.limits, mine.events, theirs.events, strict=True)
    )
    update = {
        "limits": limits,
        "pace": metric.pace.observe(mine.units, theirs.units, theirs.events, began),
        "candidate_units": metric.candidate_units + mine.units,
        "stable_units": metric.stable_units + theirs.units,
    }
    return metric.model_copy(update=update)
