"""The decision of one look at a canary's step, and its evidence: each measurement with its limit and verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.analysis import AnalysisState, MetricState, StepState, regressed_at
from llm_pipeline.canary.metrics import Thresholds
from llm_pipeline.config.policy import CanaryPolicy

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
    return stable.requests >= ABSOLUTE_FAULT_REQUESTS and stable.failed >= STABLE_BAD_FRACTION * stable.requests


def guard(step: StepState, policy: CanaryPolicy) -> Evidence | None:
    """The immediate guard, if the candidate fails request after request; None while it does not."""
    candidate = step.candidate
    in_a_row = step.failed_in_a_row >= policy.consecutive_failures
    many = (
        candidate.requests >= ABSOLUTE_FAULT_REQUESTS
        and candidate.failed >= ABSOLUTE_FAULT_FRACTION * candidate.requests
    )
    if not (in_a_row or many):
        return None
    return Evidence(
        name="immediate guard",
        verdict=Verdict.NO_GO,
        measured=float(step.failed_in_a_row if in_a_row else candidate.failed),
        limit=float(policy.consecutive_failures) if in_a_row else ABSOLUTE_FAULT_FRACTION * candidate.requests,
        unit="failures in a row" if in_a_row else "failures",
        samples=candidate.requests,
        detail=f"{candidate.failed} of {candidate.requests} candidate requests failed, {candidate.lost} reached users",
    )


def split_ratio(step: StepState) -> Evidence:
    """Whether the router split the traffic as intended (test of the sample ratio)."""
    split = step.split
    if split.rejects(SPLIT_ALPHA):
        verdict = Verdict.ANOMALOUS
        detail = "the router or a label is wrong, or one version refuses what the other answers"
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


def metric_compared(metric: MetricState, state: AnalysisState, policy: CanaryPolicy) -> Evidence:
    """The evidence of one metric over the whole canary; the last step also compares with stable's earlier steps."""
    mine, theirs, at = metric.total.candidate, metric.total.stable, metric.telling
    if metric.largest >= regressed_at(policy):
        verdict, words = Verdict.NO_GO, "regressed"
    elif max(metric.values) >= math.sqrt(regressed_at(policy)):  # half way there at a limit: more data decides
        verdict, words = Verdict.INCONCLUSIVE, "looks worse, not shown yet"
    elif mine.requests and theirs.requests:
        verdict, words = Verdict.GO, "no regression seen"
    else:
        verdict, words = Verdict.INCONCLUSIVE, "one arm has no requests"
    stable = theirs.events[at] / theirs.requests if theirs.requests else None
    held = f", at most {100.0 * metric.levels[at]:.2g} % by stable's earlier steps" if any(metric.levels) else ""
    return Evidence(
        name=metric.name,
        verdict=verdict,
        measured=mine.events[at] / mine.requests if mine.requests else None,
        limit=None if stable is None else metric.ratio * stable / (1.0 - stable + metric.ratio * stable),
        unit="fraction",
        samples=mine.requests,
        detail=(
            f"{words}: candidate {mine.events[at]}/{mine.requests}, stable {theirs.events[at]}/{theirs.requests}"
            f"{beyond_in_words(metric, state.thresholds, at)}{held}; "
            f"e-value {metric.largest:.3g} (limit {regressed_at(policy):.0f})"
        ),
    )


def beyond_in_words(metric: MetricState, thresholds: Thresholds, at: int) -> str:
    """A metric's limit in words, as ` beyond 50 ms (p90)`; empty for a metric without limits."""
    limit = thresholds.limits[metric.name][at]
    return f" beyond {limit.milliseconds:.0f} ms ({limit.label})" if limit.label else ""


def stable_fails(step: StepState) -> Evidence:
    """The evidence that stable fails, which postpones every decision."""
    return Evidence(
        name="stable's own failures",
        verdict=Verdict.INCONCLUSIVE,
        measured=step.stable.failed / step.stable.requests,
        limit=STABLE_BAD_FRACTION,
        unit="fraction",
        samples=step.stable.requests,
        detail="stable fails too: no verdict while both versions fail",
    )


def requests_enough(step: StepState, policy: CanaryPolicy) -> Evidence:
    """Whether the step has enough of the candidate's requests."""
    seen = step.candidate.requests
    enough = seen >= policy.minimum_requests
    return Evidence(
        name="candidate requests at this step",
        verdict=Verdict.GO if enough else Verdict.INCONCLUSIVE,
        measured=float(seen),
        limit=float(policy.minimum_requests),
        unit="requests",
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
    """Whether a metric bears on the step: what stable showed before the canary may not come again.

    Failures and whole answers are there in any traffic, and without them no step passes.
    """
    shown = metric.total.candidate.requests + metric.total.stable.requests
    return shown > 0 or metric.name in ("failed answers", "slow end")


def _decision(outcome: Outcome, summary: str, facts: Iterable[Evidence]) -> StepDecision:
    return StepDecision(outcome=outcome, judgement=judge(summary, facts))
