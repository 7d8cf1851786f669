"""The decision of one look at a canary's step, and its evidence: each measurement with its limit and verdict."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.analysis import AnalysisState, StepState
from llm_pipeline.canary.metric_events import CONTENTS
from llm_pipeline.canary.metric_tests import LimitState, MetricState
from llm_pipeline.canary.slow_limits import LENGTH_QUANTILES, Thresholds
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import RateTest

SPLIT_ALPHA = 0.001
"""A wrong split is a broken router or a wrong label: rare enough to ask for strong evidence."""

STABLE_BAD_FRACTION = 0.2
"""If stable fails this share of requests, that is an incident: no candidate is judged or promoted meanwhile."""

ABSOLUTE_FAULT_FRACTION = 0.5
ABSOLUTE_FAULT_REQUESTS = 20
"""The second immediate guard: this share of faults in at least this many requests of a step."""


MOST_MISSED = 7.0
"""Expected requests whose absence is no chance: e**-7 is less than 0.001."""


def stable_is_bad(step: StepState) -> bool:
    """Whether stable fails so many requests of the step that the candidate cannot be judged."""
    stable = step.stable
    return stable.requests >= ABSOLUTE_FAULT_REQUESTS and stable.faults >= STABLE_BAD_FRACTION * stable.requests


def guard(step: StepState, policy: CanaryPolicy) -> Evidence | None:
    """The immediate guard, if the candidate fails request after request; None while it does not.

    Where clients are identified, a run of failures needs at least two of them, and the share leaves out the worst one.
    """
    candidate = step.candidate
    alone = step.clients and len(set(step.failed_in_a_row)) == 1
    in_a_row = step.faults_in_a_row >= policy.consecutive_failures and not alone
    of_one = max(step.failed.values(), default=0) if step.clients else 0
    requests, faults = candidate.requests - of_one, candidate.faults - of_one
    many = candidate.requests >= ABSOLUTE_FAULT_REQUESTS and faults >= max(
        ABSOLUTE_FAULT_FRACTION * requests, policy.consecutive_failures if step.clients else 0
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
    """Whether the router split the traffic as intended (test of the sample ratio)."""
    split = step.split
    if split.rejects(SPLIT_ALPHA):
        verdict, detail = Verdict.ANOMALOUS, "the router, a label or session stickiness is wrong"
    elif split.total:
        verdict, detail = Verdict.GO, "the measured split agrees with the intended one"
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


def regression_limit(metric: MetricState, policy: CanaryPolicy) -> float:
    """The e-value at which a metric has regressed: `alpha` is split over the metrics."""
    return 1.0 / (policy.alpha * metric.alpha_share)


def metric_compared(metric: MetricState, state: AnalysisState, policy: CanaryPolicy) -> Evidence:
    """The evidence of one metric over the whole canary; the last step also compares with stable's earlier steps."""
    required = regression_limit(metric, policy)
    far = metric.far_slower(required)
    if metric.largest >= required:
        verdict, words = Verdict.NO_GO, "regressed"
    elif far is not None:
        verdict, words = Verdict.NO_GO, "far slower in every block of time"
    elif metric.candidate_units and metric.stable_units:
        verdict, words = Verdict.GO, "no regression seen"
    else:
        verdict, words = Verdict.INCONCLUSIVE, "one arm has no requests"
    at = metric.telling if far is None else far
    limit = metric.limits[at]
    stable = limit.stable_events / metric.stable_units if metric.stable_units else None
    return Evidence(
        name=metric.title,
        verdict=verdict,
        measured=limit.candidate_events / metric.candidate_units if metric.candidate_units else None,
        limit=None if stable is None else _tolerated(stable, limit.regressed),
        unit="fraction",
        samples=metric.candidate_units,
        detail=(
            f"{words}: candidate {limit.candidate_events}/{metric.candidate_units}, stable "
            f"{limit.stable_events}/{metric.stable_units}{limit_in_words(metric, state.thresholds, at)}{_held(limit)}; "
            "e-value "
            f"{metric.largest:.3g} (limit {required:.0f})"
        ),
    )


def limit_in_words(metric: MetricState, thresholds: Thresholds, at: int) -> str:
    """A metric's limit in words, as ` beyond 50 ms (p90)`; empty for a metric without limits."""
    limit = next(found for found in thresholds.metrics if found.title == metric.title).limits[at]
    if not limit.label:
        return ""
    side = "below" if metric.name == "short answers" else "beyond"
    if metric.name in CONTENTS:
        return f" {side} {limit.value:.2f} ({limit.label})"
    unit = "tokens" if metric.name in LENGTH_QUANTILES else "ms"
    digits = 1 if metric.name == "slow tokens" else 0
    return f" {side} {limit.value:.{digits}f} {unit} ({limit.label})"


def _held(limit: LimitState) -> str:
    """The level from stable's earlier steps, in words, if that comparison is the stronger evidence."""
    if limit.held is None or limit.held_value <= limit.regressed.tempered(limit.independence):
        return ""
    return f", limit from stable's earlier steps {100.0 * limit.held.limit:.2g} %"


def _tolerated(stable: float, test: RateTest) -> float:
    """The candidate's share that is still tolerated beside stable's."""
    if test.law == "rates":
        return min(1.0, stable * test.ratio)
    return test.ratio * stable / (1.0 - stable + test.ratio * stable)


def stable_fails(step: StepState) -> Evidence:
    """The evidence that stable fails, which postpones every decision."""
    return Evidence(
        name="stable's own failures",
        verdict=Verdict.INCONCLUSIVE,
        measured=step.stable.faults / step.stable.requests,
        limit=STABLE_BAD_FRACTION,
        unit="fraction",
        samples=step.stable.requests,
        detail="stable fails too: no verdict while both versions fail",
    )


def requests_enough(step: StepState, policy: CanaryPolicy) -> Evidence:
    """Whether the step has enough of the candidate's requests."""
    seen, what = step.split.candidate, f"{policy.unit}s"
    enough = seen >= policy.minimum_requests
    return Evidence(
        name=f"candidate {what} at this step",
        verdict=Verdict.GO if enough else Verdict.INCONCLUSIVE,
        measured=float(seen),
        limit=float(policy.minimum_requests),
        unit=what,
        samples=seen,
        detail="" if enough else "too little traffic to pass the step",
    )


def data_arrive(step: StepState) -> Evidence:
    """Whether data kept arriving until the end of the step; earlier data says nothing about a silence."""
    silent = step.missed > MOST_MISSED or not step.looks
    return Evidence(
        name="data until the step's end",
        verdict=Verdict.INCONCLUSIVE if silent else Verdict.GO,
        measured=float(step.silent_looks),
        unit="looks in a row without data",
        samples=step.looks,
        detail=f"about {step.missed:.0f} requests were expected in that time" if silent else "",
    )


def requests_lost(step: StepState) -> Evidence:
    """Requests that failed for users. Information only: the test of errors decides."""
    total = step.candidate.requests + step.stable.requests
    return Evidence(
        name="requests that failed for users at this step",
        verdict=Verdict.GO if total else Verdict.INCONCLUSIVE,
        measured=float(step.candidate.lost + step.stable.lost),
        unit="requests",
        samples=total,
        detail=f"candidate's arm {step.candidate.lost}, stable's arm {step.stable.lost}",
    )


class Outcome(StrEnum):
    """What should happen after a look."""

    CONTINUE = "continue"
    PASS = "pass"  # noqa: S105 - no password
    REGRESSED = "regressed"
    ANOMALOUS = "anomalous"
    UNDECIDED = "undecided"


class StepDecision(Frozen):
    """An outcome with the judgement that explains it (also for CONTINUE, for the log)."""

    outcome: Outcome
    judgement: Judgement


def decide(state: AnalysisState, policy: CanaryPolicy, elapsed_seconds: float) -> StepDecision:
    """What one look at the step says.

    The immediate guard comes first, because it protects users; the sample-ratio test next, because after a wrong
    split no comparison means anything; then the comparison; and only then whether the step has baked enough.

    Raises:
        ValueError: No step has begun.
    """
    if state.step is None:
        raise ValueError("no step has begun")
    step = state.step
    bad_stable = stable_is_bad(step)
    if not bad_stable and (fault := guard(step, policy)) is not None:
        return _decision(Outcome.REGRESSED, f"the candidate fails request after request at {step.percent}", [fault])
    split = split_ratio(step)
    if split.verdict is Verdict.ANOMALOUS:
        summary = f"traffic is not split as intended at {step.percent}, so no comparison is valid"
        return _decision(Outcome.ANOMALOUS, summary, [split])
    compared = (metric_compared(metric, state, policy) for metric in state.metrics if _is_told(metric))
    facts = [*compared, split]  # a report shows the first that says what the verdict says
    if any(fact.verdict is Verdict.NO_GO for fact in facts):
        worse = ", ".join(fact.name for fact in facts if fact.verdict is Verdict.NO_GO)
        return _decision(Outcome.REGRESSED, f"worse than stable at {step.percent} ({worse})", facts)
    if bad_stable:
        facts.append(stable_fails(step))
    facts += [requests_enough(step, policy), data_arrive(step), requests_lost(step)]
    ready = all(fact.verdict is Verdict.GO for fact in facts)
    if ready and elapsed_seconds >= policy.minimum_bake_seconds:
        return _decision(Outcome.PASS, f"no regression at {step.percent}", facts)
    if elapsed_seconds >= policy.maximum_bake_seconds:
        summary = f"not decided after {elapsed_seconds:.0f} s at {step.percent}"
        return _decision(Outcome.UNDECIDED, summary, facts)
    return _decision(Outcome.CONTINUE, f"baking at {step.percent}", facts)


def _is_told(metric: MetricState) -> bool:
    """Whether a metric bears on the step: a rare kind that both arms show, and whatever one of them shows.

    What stable showed before the canary, in a few requests of an hour, may not come again. Failures and whole answers
    are there in any traffic, and without them no step passes.
    """
    shown = (metric.candidate_units > 0, metric.stable_units > 0)
    return all(shown) if metric.kind else any(shown) or metric.name in ("errors", "slow end to end")


def _decision(outcome: Outcome, summary: str, facts: Iterable[Evidence]) -> StepDecision:
    return StepDecision(outcome=outcome, judgement=judge(summary, facts))
