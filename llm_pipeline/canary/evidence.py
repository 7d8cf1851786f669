"""The facts that a look at a canary's step brings: each says what was measured, its limit, and its own verdict."""

from __future__ import annotations

from llm_pipeline.canary.analysis import AnalysisState, MetricName, MetricState, StepState, parity_proven
from llm_pipeline.canary.slow_limits import SLOW_FACTORS, Thresholds
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.verdict import Evidence, Verdict

SPLIT_ALPHA = 0.001
"""A wrong split is a broken router or a wrong label: rare enough to ask for strong evidence."""

STABLE_BAD_FRACTION = 0.2
"""Stable failing this share of requests is an incident of its own: nobody is blamed or promoted meanwhile."""

ABSOLUTE_FAULT_FRACTION = 0.5
ABSOLUTE_FAULT_REQUESTS = 20
"""The second immediate guard: this share of faults in at least this many requests of a step."""


def stable_is_bad(step: StepState) -> bool:
    """Whether stable itself fails too much of the step for anybody to be blamed."""
    stable = step.stable
    return stable.requests >= ABSOLUTE_FAULT_REQUESTS and stable.faults >= STABLE_BAD_FRACTION * stable.requests


def guard(step: StepState, policy: CanaryPolicy) -> Evidence | None:
    """The immediate guard, if the candidate fails request after request; None while it does not."""
    candidate = step.candidate
    in_a_row = step.faults_in_a_row >= policy.consecutive_failures
    many = candidate.requests >= ABSOLUTE_FAULT_REQUESTS and (
        candidate.faults >= ABSOLUTE_FAULT_FRACTION * candidate.requests
    )
    if not (in_a_row or many):
        return None
    return Evidence(
        name="immediate guard",
        verdict=Verdict.NO_GO,
        measured=float(step.faults_in_a_row if in_a_row else candidate.faults),
        limit=float(policy.consecutive_failures) if in_a_row else ABSOLUTE_FAULT_FRACTION * candidate.requests,
        unit="failures in a row" if in_a_row else "failures",
        samples=candidate.requests,
        detail=f"{candidate.faults} of {candidate.requests} candidate requests failed, {candidate.lost} reached users",
    )


def split_ratio(step: StepState) -> Evidence:
    """Whether the router split the traffic as it was told (sample ratio)."""
    split = step.split
    if split.rejects(SPLIT_ALPHA):
        verdict, detail = Verdict.ANOMALOUS, "the router, a label or session stickiness is wrong"
    elif split.total:
        verdict, detail = Verdict.GO, "the split is the intended one, up to chance"
    else:
        verdict, detail = Verdict.INCONCLUSIVE, "no traffic"
    return Evidence(
        name="sample ratio",
        verdict=verdict,
        measured=split.measured,
        limit=split.intended,
        unit="fraction",
        samples=split.total,
        detail=f"{detail} (e-value {split.largest:.3g}, limit {1 / SPLIT_ALPHA:.0f})",
    )


def regression_limit(state: AnalysisState, policy: CanaryPolicy) -> float:
    """The e-value at which a metric has regressed: `alpha` is split over the metrics."""
    return len(state.metrics) / policy.alpha


def metric_compared(metric: MetricState, state: AnalysisState, policy: CanaryPolicy) -> Evidence:
    """Judged over the whole canary; at 100 % there is no concurrent stable, and what was seen before stands."""
    required = regression_limit(state, policy)
    if metric.largest >= required:
        verdict, words = Verdict.NO_GO, "regressed"
    elif metric.candidate_requests and metric.stable_requests:
        proven = metric.name in parity_proven(state, policy)
        verdict, words = Verdict.GO, "parity proven" if proven else "no regression seen, parity not proven"
    else:
        verdict, words = Verdict.INCONCLUSIVE, "one arm has no requests"
    at = metric.telling
    limit = metric.limits[at]
    stable = limit.stable_events / metric.stable_requests if metric.stable_requests else None
    return Evidence(
        name=metric.name,
        verdict=verdict,
        measured=limit.candidate_events / metric.candidate_requests if metric.candidate_requests else None,
        limit=None if stable is None else stable * limit.regressed.ratio,
        unit="fraction",
        samples=metric.candidate_requests,
        detail=(
            f"{words}: candidate {limit.candidate_events}/{metric.candidate_requests}, stable "
            f"{limit.stable_events}/{metric.stable_requests}{slow_limit(metric.name, state.thresholds, at)}; e-value "
            f"{metric.largest:.3g} (limit {required:.0f})"
        ),
    )


def slow_limit(name: MetricName, thresholds: Thresholds, at: int) -> str:
    """Beyond what the metric counted a request at one of its limits, as ` beyond 50 ms`; empty for errors."""
    if name == "errors":
        return ""
    limit = thresholds.first_token_milliseconds if name == "slow first token" else thresholds.end_to_end_milliseconds
    return "" if limit is None else f" beyond {SLOW_FACTORS[at] * limit:.0f} ms"


def stable_fails(step: StepState) -> Evidence:
    """Why nothing is decided while stable fails."""
    return Evidence(
        name="stable itself",
        verdict=Verdict.INCONCLUSIVE,
        measured=step.stable.faults / step.stable.requests,
        limit=STABLE_BAD_FRACTION,
        unit="fraction",
        samples=step.stable.requests,
        detail="stable fails too: holding, because a failure of both arms is not the candidate's",
    )


def requests_enough(step: StepState, policy: CanaryPolicy) -> Evidence:
    """Whether the step saw enough of the candidate."""
    enough = step.candidate.requests >= policy.minimum_requests
    return Evidence(
        name="candidate requests at this step",
        verdict=Verdict.GO if enough else Verdict.INCONCLUSIVE,
        measured=float(step.candidate.requests),
        limit=float(policy.minimum_requests),
        unit="requests",
        samples=step.candidate.requests,
        detail="" if enough else "too little traffic to pass the step",
    )


def requests_lost(step: StepState) -> Evidence:
    """A fact for the reader: by itself it decides nothing, the error test does."""
    total = step.candidate.requests + step.stable.requests
    return Evidence(
        name="requests that failed for users at this step",
        verdict=Verdict.GO if total else Verdict.INCONCLUSIVE,
        measured=float(step.candidate.lost + step.stable.lost),
        unit="requests",
        samples=total,
        detail=f"candidate's arm {step.candidate.lost}, stable's arm {step.stable.lost}",
    )
