"""What a canary remembers of its traffic: the state of every test, and how a window changes it. Pure functions.

Errors, latencies and what answers look like are tested continuously over the whole canary with anytime-valid tests;
`alpha` is split over the metrics, so that all looks at all of them together roll back a good candidate with
probability at most `alpha`. Errors have half of it: they are what a canary is for, and the rarest. Low-traffic steps
cannot prove parity and do not pretend to: a step passes when nothing speaks against the candidate, and its evidence
says whether parity was proven or only no regression seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import model_validator

from llm_pipeline.canary.eprocess import RareTest, RateTest, SplitTest
from llm_pipeline.canary.sessions import Sessions
from llm_pipeline.canary.slow_limits import LENGTH_QUANTILES, SLOW_FACTORS, Thresholds
from llm_pipeline.canary.units import LATENCIES, RARE, Limit, MetricLimits, MetricName
from llm_pipeline.canary.windows import ArmCounts, MetricCounts, Window, count
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.stages.contract import Frozen

ERRORS_SHARE = 0.5
"""Of `alpha`; the other metrics have equal parts of the rest."""

_PARITY_QUANTILES = ("p90", "p95", "p50")
"""Where non-inferiority is tested: far enough in the tail to matter, near enough to be proven with hours of traffic."""


class LimitState(Frozen):
    """The test of one metric at one limit, over the whole canary."""

    regressed: RateTest
    candidate_events: int = 0
    stable_events: int = 0


class Parity(Frozen):
    """Whether the candidate is no worse: by the ratio to stable or, where events may never happen, by their rarity.

    Attributes:
        at: Index of the limit that is tested.
    """

    non_inferior: RateTest
    rare: RareTest | None
    at: int

    @property
    def largest(self) -> float:
        """The e-value to be compared with 1 / alpha; two ways to prove it share alpha."""
        if self.rare is None:
            return self.non_inferior.largest
        return max(self.non_inferior.largest, self.rare.largest) / 2.0

    def proven(self, alpha: float) -> bool:
        """Whether the candidate is proven to be no worse, at level `alpha`."""
        return self.largest >= 1.0 / alpha

    def observe(self, counts: MetricCounts) -> Parity:
        """The tests after one more window of one stratum."""
        mine, theirs = counts.candidate, counts.stable
        return Parity(
            non_inferior=self.non_inferior.observe(
                candidate_events=mine.events[self.at],
                stable_events=theirs.events[self.at],
                candidate_requests=mine.units,
                stable_requests=theirs.units,
                stratum=counts.stratum,
            ),
            rare=self.rare and self.rare.observe(events=mine.events[self.at], requests=mine.units),
            at=self.at,
        )


class MetricState(Frozen):
    """One metric's tests over the whole canary.

    Attributes:
        alpha_share: The part of the policy's `alpha` that the metric may spend.
        limits: One test for each limit.
        parity: Over the whole canary.
        parity_here: Over the current step alone.
        untouched: `parity` without data, to begin a step with.
        candidate_units: Requests, or sessions, of which the metric could be told.
        largest: The largest mean of the limits' e-values so far; a mean of e-processes is an e-process.
    """

    name: MetricName
    alpha_share: float
    limits: tuple[LimitState, ...]
    parity: Parity
    parity_here: Parity
    untouched: Parity
    candidate_units: int = 0
    stable_units: int = 0
    largest: float = 1.0

    @property
    def telling(self) -> int:
        """Index of the limit that says most against the candidate; of the one that parity is tested at if none does."""
        values = [limit.regressed.value for limit in self.limits]
        return values.index(max(values)) if max(values) > 1.0 else self.parity.at


class StepState(Frozen):
    """What was seen since the current step began.

    Attributes:
        split: Of what counts once: requests, or sessions.
        sessions: Those of the step, where sessions count.
    """

    share: float
    split: SplitTest
    candidate: ArmCounts = ArmCounts()
    stable: ArmCounts = ArmCounts()
    faults_in_a_row: int = 0
    sessions: Sessions = Sessions()

    @property
    def percent(self) -> str:
        """The share for people, e.g. `25 %`."""
        return f"{self.share * 100:g} %"


class AnalysisState(Frozen):
    """Everything that the analysis remembers; stored, so that a resumed controller continues the same tests.

    What an earlier release of this package stored of a canary in flight is read as the same limits with tests that
    begin anew, at the same step.
    """

    thresholds: Thresholds
    metrics: tuple[MetricState, ...]
    step: StepState | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_earlier_form(cls, stored: Any) -> Any:
        earlier = isinstance(stored, Mapping) and isinstance(stored.get("thresholds"), Mapping)
        return dict(_begun_anew(stored)) if earlier and "metrics" not in stored["thresholds"] else stored


def begin(thresholds: Thresholds, policy: CanaryPolicy) -> AnalysisState:
    """The analysis of a canary without data."""
    others = len(thresholds.metrics) - 1
    of_errors = ERRORS_SHARE if others else 1.0
    metrics = (
        _begin_metric(metric, of_errors if metric.name == "errors" else (1.0 - of_errors) / others, policy)
        for metric in thresholds.metrics
    )
    return AnalysisState(thresholds=thresholds, metrics=tuple(metrics))


def begin_step(state: AnalysisState, share: float) -> AnalysisState:
    """The analysis at a new traffic share; the metrics' tests go on, the step's own counts start again."""
    metrics = state.metrics
    if share < 1.0:
        metrics = tuple(metric.model_copy(update={"parity_here": metric.untouched}) for metric in metrics)
    step = StepState(share=share, split=SplitTest(intended=share))
    return state.model_copy(update={"metrics": metrics, "step": step})


def observe(state: AnalysisState, seen: Window) -> AnalysisState:
    """The analysis after one more window.

    Raises:
        ValueError: No step has begun.
    """
    if state.step is None:
        raise ValueError("no step has begun")
    step = state.step
    sessions, units = step.sessions.observe(seen.sessions, seen.until, state.thresholds.session_seconds)
    of_candidate = sum(unit.on_trial for unit in units)
    run = step.faults_in_a_row + seen.trailing_faults if seen.all_faults else seen.trailing_faults
    update = {
        "split": step.split.observe(
            candidate_requests=seen.candidate_units + of_candidate,
            stable_requests=seen.stable_units + len(units) - of_candidate,
        ),
        "candidate": step.candidate.plus(seen.candidate),
        "stable": step.stable.plus(seen.stable),
        "faults_in_a_row": run,
        "sessions": sessions,
    }
    metrics = state.metrics  # at 100 % there is no concurrent stable traffic to compare with
    if step.share < 1.0:
        counts = (*seen.counts, *count(units, state.thresholds))
        metrics = tuple(_observe_metric(metric, counts) for metric in metrics)
    return state.model_copy(update={"step": step.model_copy(update=update), "metrics": metrics})


def parity_proven(state: AnalysisState, policy: CanaryPolicy) -> tuple[MetricName, ...]:
    """Metrics for which non-inferiority is proven; each at `alpha`, since all must hold to claim parity."""
    return tuple(metric.name for metric in state.metrics if metric.parity.proven(policy.alpha))


def parity_proven_here(state: AnalysisState, policy: CanaryPolicy) -> bool:
    """Whether the current step alone proves non-inferiority on every metric."""
    here = state.step is not None and state.step.share < 1.0
    return here and all(metric.parity_here.proven(policy.alpha) for metric in state.metrics)


def _begin_metric(metric: MetricLimits, alpha_share: float, policy: CanaryPolicy) -> MetricState:
    rare = metric.name in RARE
    ratio = policy.length_ratio if metric.name in LENGTH_QUANTILES else policy.slow_ratio
    ratio, law = (policy.error_ratio, "rates") if rare else (ratio, "odds")
    labels = [limit.label for limit in metric.limits]
    parity = Parity(
        non_inferior=RateTest.start("lo", _above(ratio), law),  # type: ignore[arg-type]
        rare=RareTest(limit=policy.negligible_share) if metric.name not in LATENCIES else None,
        at=next((labels.index(label) for label in _PARITY_QUANTILES if label in labels), 0),
    )
    return MetricState(
        name=metric.name,
        alpha_share=alpha_share,
        limits=(LimitState(regressed=RateTest.start("hi", ratio, law)),) * len(metric.limits),  # type: ignore[arg-type]
        parity=parity,
        parity_here=parity,
        untouched=parity,
    )


def _above(ratio: float) -> float:
    """The boundary of the non-inferiority test: with a tolerated ratio of exactly 1 nothing could ever be proven."""
    return max(ratio, 1.1)


def _observe_metric(metric: MetricState, counts: Iterable[MetricCounts]) -> MetricState:
    """All strata of the window first, then the e-value: a look sees whole windows."""
    for stratum in counts:
        if stratum.name == metric.name and (stratum.candidate.units or stratum.stable.units):
            metric = _observe_stratum(metric, stratum)
    mean = sum(limit.regressed.value for limit in metric.limits) / len(metric.limits)
    return metric.model_copy(update={"largest": max(metric.largest, mean)})


def _observe_stratum(metric: MetricState, counts: MetricCounts) -> MetricState:
    mine, theirs = counts.candidate, counts.stable
    limits = tuple(
        LimitState(
            regressed=limit.regressed.observe(
                candidate_events=my_events,
                stable_events=their_events,
                candidate_requests=mine.units,
                stable_requests=theirs.units,
                stratum=counts.stratum,
            ),
            candidate_events=limit.candidate_events + my_events,
            stable_events=limit.stable_events + their_events,
        )
        for limit, my_events, their_events in zip(metric.limits, mine.events, theirs.events, strict=True)
    )
    update = {
        "limits": limits,
        "parity": metric.parity.observe(counts),
        "parity_here": metric.parity_here.observe(counts),
        "candidate_units": metric.candidate_units + mine.units,
        "stable_units": metric.stable_units + theirs.units,
    }
    return metric.model_copy(update=update)


def _begun_anew(stored: Mapping[str, Any]) -> AnalysisState:
    """An analysis that had one limit for each of three metrics, whose tests remembered their tolerated ratios."""
    limits, ratios = stored["thresholds"], {metric["name"]: metric["limits"][0] for metric in stored["metrics"]}
    found = {
        "slow first token": limits["first_token_milliseconds"],
        "slow end to end": limits["end_to_end_milliseconds"],
    }
    slow = (
        MetricLimits(
            name=name,
            limits=tuple(Limit(value=by * limit, label=f"{by:g} x the limit") for by in (1.0, *SLOW_FACTORS)),
        )
        for name, limit in found.items()
        if limit is not None
    )
    thresholds = Thresholds(requests=limits["requests"], metrics=(MetricLimits(name="errors"), *slow))
    policy = CanaryPolicy(
        error_ratio=ratios["errors"]["regressed"]["ratio"],
        slow_ratio=ratios["slow end to end"]["regressed"]["ratio"],
    )
    state = begin(thresholds, policy)
    return state if stored.get("step") is None else begin_step(state, stored["step"]["share"])
