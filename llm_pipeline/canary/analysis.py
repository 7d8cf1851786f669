"""What a canary remembers of its traffic: the state of every test, and how a window changes it. Pure functions.

Three metrics (errors, slow first token, slow end-to-end) are tested continuously over the whole canary with
anytime-valid tests; `alpha` is split over them, so that all looks at all of them together roll back a good
candidate with probability at most `alpha`. Low-traffic steps cannot prove parity and do not pretend to: a step
passes when nothing speaks against the candidate, and its evidence says whether parity was proven or only no
regression seen.
"""

from __future__ import annotations

from typing import Literal

from llm_pipeline.canary.eprocess import RateTest, SplitTest
from llm_pipeline.canary.slow_limits import SLOW_FACTORS, SlowCounts, Thresholds
from llm_pipeline.canary.windows import ArmCounts, Window
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.stages.contract import Frozen

MetricName = Literal["errors", "slow first token", "slow end to end"]


class LimitState(Frozen):
    """The tests of one metric at one limit, over the whole canary."""

    regressed: RateTest
    candidate_events: int = 0
    stable_events: int = 0


class MetricState(Frozen):
    """One metric's tests over the whole canary.

    Attributes:
        limits: One test for each limit; a single one for errors.
        non_inferior: Tested at the first limit.
        largest: The largest mean of the limits' e-values so far; a mean of e-processes is an e-process.
    """

    name: MetricName
    limits: tuple[LimitState, ...]
    non_inferior: RateTest
    candidate_requests: int = 0
    stable_requests: int = 0
    largest: float = 1.0

    @property
    def telling(self) -> int:
        """Index of the limit that says most."""
        values = [limit.regressed.value for limit in self.limits]
        return values.index(max(values))


class StepState(Frozen):
    """What was seen since the current step began."""

    share: float
    split: SplitTest
    candidate: ArmCounts = ArmCounts()
    stable: ArmCounts = ArmCounts()
    faults_in_a_row: int = 0

    @property
    def percent(self) -> str:
        """The share for people, e.g. `25 %`."""
        return f"{self.share * 100:g} %"


class AnalysisState(Frozen):
    """Everything that the analysis remembers; stored, so that a resumed controller continues the same tests."""

    thresholds: Thresholds
    metrics: tuple[MetricState, ...]
    step: StepState | None = None


def begin(thresholds: Thresholds, policy: CanaryPolicy) -> AnalysisState:
    """The analysis of a canary without data."""
    ratios: dict[MetricName, float] = {"errors": policy.error_ratio}
    if thresholds.first_token_milliseconds is not None:
        ratios["slow first token"] = policy.slow_ratio
    ratios["slow end to end"] = policy.slow_ratio
    metrics = (
        MetricState(
            name=name,
            limits=(LimitState(regressed=RateTest.start("hi", ratio)),)
            * (1 if name == "errors" else len(SLOW_FACTORS)),
            non_inferior=RateTest.start("lo", _above(ratio)),
        )
        for name, ratio in ratios.items()
    )
    return AnalysisState(thresholds=thresholds, metrics=tuple(metrics))


def begin_step(state: AnalysisState, share: float) -> AnalysisState:
    """The analysis at a new traffic share; the metrics' tests go on, the step's own counts start again."""
    return state.model_copy(update={"step": StepState(share=share, split=SplitTest(intended=share))})


def observe(state: AnalysisState, seen: Window) -> AnalysisState:
    """The analysis after one more window.

    Raises:
        ValueError: No step has begun.
    """
    if state.step is None:
        raise ValueError("no step has begun")
    step = state.step
    run = step.faults_in_a_row + seen.trailing_faults if seen.all_faults else seen.trailing_faults
    update = {
        "split": step.split.observe(candidate_requests=seen.candidate.requests, stable_requests=seen.stable.requests),
        "candidate": step.candidate.plus(seen.candidate),
        "stable": step.stable.plus(seen.stable),
        "faults_in_a_row": run,
    }
    metrics = state.metrics  # at 100 % there is no concurrent stable traffic to compare with
    if step.share < 1.0:
        metrics = tuple(_observe_metric(metric, seen) for metric in metrics)
    return state.model_copy(update={"step": step.model_copy(update=update), "metrics": metrics})


def parity_proven(state: AnalysisState, policy: CanaryPolicy) -> tuple[MetricName, ...]:
    """Metrics for which non-inferiority is proven; each at `alpha`, since all must hold to claim parity."""
    return tuple(metric.name for metric in state.metrics if metric.non_inferior.rejects(policy.alpha))


def _above(ratio: float) -> float:
    """The boundary of the non-inferiority test: with a tolerated ratio of exactly 1 nothing could ever be proven."""
    return max(ratio, 1.1)


def _events(name: MetricName, counts: ArmCounts) -> tuple[SlowCounts, int]:
    """Events at each of the metric's limits, and the requests that they are out of."""
    if name == "errors":
        return (counts.errors,), counts.requests
    if name == "slow first token":
        return counts.slow_streams, counts.streams
    return counts.slow, counts.answered


def _observe_metric(metric: MetricState, seen: Window) -> MetricState:
    candidate_events, candidate_requests = _events(metric.name, seen.candidate)
    stable_events, stable_requests = _events(metric.name, seen.stable)
    requests = {"candidate_requests": candidate_requests, "stable_requests": stable_requests}
    limits = tuple(
        LimitState(
            regressed=limit.regressed.observe(candidate_events=mine, stable_events=theirs, **requests),
            candidate_events=limit.candidate_events + mine,
            stable_events=limit.stable_events + theirs,
        )
        for limit, mine, theirs in zip(metric.limits, candidate_events, stable_events, strict=True)
    )
    mean = sum(limit.regressed.value for limit in limits) / len(limits)
    return metric.model_copy(
        update={
            "limits": limits,
            "non_inferior": metric.non_inferior.observe(
                candidate_events=candidate_events[0], stable_events=stable_events[0], **requests
            ),
            "candidate_requests": metric.candidate_requests + candidate_requests,
            "stable_requests": metric.stable_requests + stable_requests,
            "largest": max(metric.largest, mean),
        }
    )
