"""The decision of one look at a canary's step, with the judgement that explains it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary import evidence
from llm_pipeline.canary.analysis import AnalysisState, StepState, parity_proven_here
from llm_pipeline.config.policy import CanaryPolicy


class Outcome(StrEnum):
    """What one look says should happen next."""

    CONTINUE = "continue"
    PASS = "pass"  # noqa: S105 - a verdict
    REGRESSED = "regressed"
    ANOMALOUS = "anomalous"
    UNDECIDED = "undecided"


class Decision(Frozen):
    """An outcome with the judgement that explains it (also for CONTINUE, for the log)."""

    outcome: Outcome
    judgement: Judgement


def decide(state: AnalysisState, policy: CanaryPolicy, elapsed_seconds: float) -> Decision:
    """What one look at the step says.

    The immediate guard comes first, because it protects users; the sample-ratio test next, because after a wrong
    split no comparison means anything; then the comparison; and only then whether the step has baked enough.

    Raises:
        ValueError: No step has begun.
    """
    if state.step is None:
        raise ValueError("no step has begun")
    step = state.step
    stable_is_bad = evidence.stable_is_bad(step)
    if not stable_is_bad and (guard := evidence.guard(step, policy)) is not None:
        return _decision(Outcome.REGRESSED, f"the candidate fails request after request at {step.percent}", [guard])
    split = evidence.split_ratio(step)
    if split.verdict is Verdict.ANOMALOUS:
        summary = f"traffic is not split as intended at {step.percent}, so no comparison is valid"
        return _decision(Outcome.ANOMALOUS, summary, [split])
    told = (metric for metric in state.metrics if not metric.kind or (metric.candidate_units and metric.stable_units))
    facts = [split, *(evidence.metric_compared(metric, state, policy) for metric in told)]
    if any(fact.verdict is Verdict.NO_GO for fact in facts):
        worse = ", ".join(fact.name for fact in facts if fact.verdict is Verdict.NO_GO)
        return _decision(Outcome.REGRESSED, f"worse than stable at {step.percent} ({worse})", facts)
    if stable_is_bad:
        facts.append(evidence.stable_fails(step))
    facts += [evidence.requests_enough(step, policy), evidence.data_arrive(step), evidence.requests_lost(step)]
    early = policy.advance_early and parity_proven_here(state, policy)
    return _bake(step, policy, elapsed_seconds, facts, early=early)


def _bake(
    step: StepState, policy: CanaryPolicy, elapsed_seconds: float, facts: list[Evidence], *, early: bool
) -> Decision:
    """Long enough, or parity proven by the step's own traffic where the policy advances early."""
    ready = all(fact.verdict is Verdict.GO for fact in facts)
    if ready and elapsed_seconds >= policy.minimum_bake_seconds:
        return _decision(Outcome.PASS, f"no regression at {step.percent}", facts)
    if ready and early:
        return _decision(Outcome.PASS, f"parity proven on every metric at {step.percent}", facts)
    if elapsed_seconds >= policy.maximum_bake_seconds:
        summary = f"not decided after {elapsed_seconds:.0f} s at {step.percent}"
        return _decision(Outcome.UNDECIDED, summary, facts)
    return _decision(Outcome.CONTINUE, f"baking at {step.percent}", facts)


def _decision(outcome: Outcome, summary: str, facts: Iterable[Evidence]) -> Decision:
    return Decision(outcome=outcome, judgement=judge(summary, facts))
