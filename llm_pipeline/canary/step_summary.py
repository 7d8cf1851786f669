"""What a canary's step showed, as data: the metrics with their limits, e-values and verdicts. The report shows it."""

from __future__ import annotations

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.analysis import AnalysisState
from llm_pipeline.canary.evidence import SPLIT_ALPHA, limit_in_words, metric_compared, regression_limit, split_ratio
from llm_pipeline.canary.metric_tests import MetricState
from llm_pipeline.canary.record import CanaryRecord
from llm_pipeline.config.policy import CanaryPolicy


class MetricSummary(Frozen):
    """One metric over the whole canary, at the end of a step.

    Attributes:
        name: The metric, with the limit that says most: `slow first token beyond 50 ms (p90)`.
        candidate_events: How many of its units had an event there.
        candidate_units: Requests, or sessions, of which the metric could be told.
        e_value: That the candidate is worse than tolerated; the largest so far.
        regressed_at: The e-value from which it is.
        parity_e_value: That the candidate is no worse; the largest so far.
        proven_at: The e-value from which that is proven.
    """

    name: str
    verdict: Verdict
    candidate_events: int
    candidate_units: int
    stable_events: int
    stable_units: int
    e_value: float
    regressed_at: float
    parity_e_value: float
    proven_at: float


class StepSummary(Frozen):
    """A step as it was judged last.

    Attributes:
        percent: The candidate's intended share.
        verdict: The judgement's; None before the first look.
        summary: Its sentence.
        watched_seconds: How long it was watched.
        candidate_units: Requests, or sessions, of the step.
        measured_percent: The candidate's share of them; None without traffic.
        split_e_value: That the router splits the traffic wrongly; the largest of the step.
        split_wrong_at: The e-value from which it does.
        left_out: What was not compared, and why.
    """

    percent: float
    verdict: Verdict | None
    summary: str
    watched_seconds: float
    unit: str
    candidate_units: int
    stable_units: int
    measured_percent: float | None
    split_verdict: Verdict
    split_e_value: float
    split_wrong_at: float
    metrics: tuple[MetricSummary, ...]
    left_out: tuple[str, ...] = ()


def summarise_step(record: CanaryRecord, policy: CanaryPolicy) -> StepSummary | None:
    """The step in force of a canary; None before the first."""
    state = record.analysis
    if state is None or state.step is None:
        return None
    split = state.step.split
    return StepSummary(
        percent=record.step_percent,
        verdict=record.judgement.verdict if record.judgement else None,
        summary=record.judgement.summary if record.judgement else "",
        watched_seconds=record.watched_seconds,
        unit=policy.unit,
        candidate_units=split.candidate,
        stable_units=split.total - split.candidate,
        measured_percent=None if split.measured is None else 100.0 * split.measured,
        split_verdict=split_ratio(state.step).verdict,
        split_e_value=split.largest,
        split_wrong_at=1.0 / SPLIT_ALPHA,
        metrics=tuple(_summarise_metric(metric, state, policy) for metric in state.metrics),
        left_out=tuple(state.thresholds.left_out),
    )


def _summarise_metric(metric: MetricState, state: AnalysisState, policy: CanaryPolicy) -> MetricSummary:
    at = metric.telling
    return MetricSummary(
        name=metric.title + limit_in_words(metric, state.thresholds, at),
        verdict=metric_compared(metric, state, policy).verdict,
        candidate_events=metric.limits[at].candidate_events,
        candidate_units=metric.candidate_units,
        stable_events=metric.limits[at].stable_events,
        stable_units=metric.stable_units,
        e_value=metric.largest,
        regressed_at=regression_limit(metric, policy),
        parity_e_value=metric.parity.largest,
        proven_at=1.0 / policy.alpha,
    )
