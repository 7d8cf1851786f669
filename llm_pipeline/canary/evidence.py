"""The decision of one look at a canary's step with its evidence, and the judgements that need no statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import StrEnum

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.analysis import AnalysisState, MetricState, StepState, regressed_at
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import SplitTest

SPLIT_ALPHA = 0.001
"""A wrong split is a broken router or a wrong label: rare enough to ask for strong evidence."""

STABLE_BAD_FRACTION = 0.2
"""If stable fails this share of requests, that is an incident: no candidate is judged or promoted meanwhile."""

ABSOLUTE_FAULT_FRACTION = 0.5
ABSOLUTE_FAULT_REQUESTS = 20
"""The second immediate guard: this share of faults in at least this many requests of a step."""


MOST_MISSED = 7.0
"""Expected requests whose absence is no chance: e**-7 is less than 0.001."""


_EXPLAINED_ALPHA = 0.05
"""Requests that wait explain a split unless, counted in, they still contradict the intended one at this level. It is
looser than the level of the split's own test, because some requests are always in flight at a server that works."""


def stable_is_bad(step: StepState) -> bool:
    """Whether stable fails so many requests of the step that the candidate cannot be judged."""
    stable = step.stable
    return stable.requests >= ABSOLUTE_FAULT_REQUESTS and stable.failed >= STABLE_BAD_FRACTION * stable.requests


def guard(step: StepState, policy: CanaryPolicy) -> Evidence | None:
    """The immediate guard, if the candidate fails request after request; None while it does not."""
    candidate, most = step.candidate, ABSOLUTE_FAULT_FRACTION * step.candidate.requests
    in_a_row = step.failed_in_a_row >= policy.consecutive_failures
    if not in_a_row and (candidate.requests < ABSOLUTE_FAULT_REQUESTS or candidate.failed < most):
        return None
    return Evidence(
        name="immediate guard",
        verdict=Verdict.NO_GO,
        measured=step.failed_in_a_row if in_a_row else candidate.failed,
        limit=policy.consecutive_failures if in_a_row else most,
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
    limit, held = state.thresholds.limits[metric.name][at], ""
    beyond = f" beyond {limit.milliseconds:.0f} ms ({limit.label})" if limit.label else ""
    if any(metric.levels):
        held = f", at most {100.0 * metric.levels[at]:.2g} % by stable's earlier steps"
    return Evidence(
        name=metric.name,
        verdict=verdict,
        measured=mine.events[at] / mine.requests if mine.requests else None,
        limit=None if stable is None else metric.ratio * stable / (1.0 - stable + metric.ratio * stable),
        unit="fraction",
        samples=mine.requests,
        detail=(
            f"{words}: candidate {mine.events[at]}/{mine.requests}, stable {theirs.events[at]}/{theirs.requests}"
            f"{beyond}{held}; e-value {metric.largest:.3g} (limit {regressed_at(policy):.0f})"
        ),
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


def decide(
    state: AnalysisState,
    policy: CanaryPolicy,
    elapsed_seconds: float,
    stable_answers: Callable[[], bool] = lambda: False,
) -> StepDecision:
    """What one look at the step says.

    The immediate guard comes first, because it protects users; the sample-ratio test next, because after a wrong
    split no comparison means anything; then the comparison; and only then whether the step has baked enough.

    Args:
        state: What the canary remembers.
        policy: Its rules.
        elapsed_seconds: How long the step was watched.
        stable_answers: Whether stable answers now: after an incident it is no excuse any more.

    Raises:
        ValueError: No step has begun.
    """
    if state.step is None:
        raise ValueError("no step has begun")
    step = state.step

    def decided(outcome: Outcome, words: str, facts: Iterable[Evidence]) -> StepDecision:
        return StepDecision(outcome=outcome, judgement=judge(f"{words}: {step}", facts))

    fault, bad_stable = guard(step, policy), stable_is_bad(step)
    if fault is not None and (not bad_stable or stable_answers()):
        words = f"the candidate fails request after request at {step.percent}"
        return decided(Outcome.REGRESSED, f"{words}, and stable answers again" if bad_stable else words, [fault])
    split = split_ratio(step)
    if split.verdict is Verdict.ANOMALOUS:
        words = f"traffic is not split as intended at {step.percent}, so no comparison is valid"
        return decided(Outcome.ANOMALOUS, words, [split])
    facts = []  # a report shows the first that says what the verdict says
    for metric in state.metrics:
        total = metric.total
        # What stable showed before the canary may not come again; but failures and whole answers are in any traffic.
        if total.candidate.requests or total.stable.requests or metric.name in ("failed answers", "slow end"):
            facts.append(metric_compared(metric, state, policy))
    facts.append(split)
    if any(fact.verdict is Verdict.NO_GO for fact in facts):
        worse = ", ".join(fact.name for fact in facts if fact.verdict is Verdict.NO_GO)
        slow = next((one.total.candidate.events[0] for one in state.metrics if one.name == "slow end"), 0)
        if "slow end" in worse and 2 * state.unanswered > slow:
            worse += f": {state.unanswered} of {slow} slow requests hung without an answer"
        return decided(Outcome.REGRESSED, f"worse than stable at {step.percent} ({worse})", facts)
    facts += _needed(step, policy)
    ready = all(fact.verdict is Verdict.GO for fact in facts)
    if ready and elapsed_seconds >= policy.minimum_bake_seconds:
        return decided(Outcome.PASS, f"no regression at {step.percent}", facts)
    if elapsed_seconds >= policy.maximum_bake_seconds:
        return decided(Outcome.UNDECIDED, f"not decided after {elapsed_seconds:.0f} s at {step.percent}", facts)
    return decided(Outcome.CONTINUE, f"baking at {step.percent}", facts)


def _needed(step: StepState, policy: CanaryPolicy) -> Iterator[Evidence]:
    """What a step needs besides the comparison."""
    mine, theirs = step.candidate.requests, step.stable
    enough, silent = mine >= policy.minimum_requests, step.missed > MOST_MISSED or not step.looks
    if stable_is_bad(step):
        yield Evidence(
            name="stable's own failures",
            verdict=Verdict.INCONCLUSIVE,
            measured=theirs.failed / theirs.requests,
            limit=STABLE_BAD_FRACTION,
            unit="fraction",
            samples=theirs.requests,
            detail="stable fails too: no verdict while both versions fail",
        )
    yield Evidence(
        name="candidate requests at this step",
        verdict=Verdict.GO if enough else Verdict.INCONCLUSIVE,
        measured=mine,
        limit=policy.minimum_requests,
        unit="requests",
        samples=mine,
        detail="" if enough else "too little traffic to pass the step",
    )
    yield Evidence(
        name="data until the step's end",
        verdict=Verdict.INCONCLUSIVE if silent else Verdict.GO,
        measured=step.silent_looks,
        unit="looks in a row without data",
        samples=step.looks,
        detail=f"about {step.missed:.0f} requests were expected in that time" if silent else "",
    )


def stated(
    verdict: Verdict, summary: str, name: str, detail: str = "", *, measured: float | None = None, samples: int = 0
) -> Judgement:
    """A judgement by one fact that needs no statistics; without a detail the summary says all."""
    fact = Evidence(name=name, verdict=verdict, measured=measured, samples=samples, detail=detail or summary)
    return judge(summary, [fact])


MORE_TRAFFIC = (
    "release while there is user traffic, or have the canary replay prompts of the workload, or more of them "
    "(replay_requests_per_second under canary: of the policy, where the router's users' address is known here)"
)
"""How to get enough requests for a judgement."""


def not_acknowledged() -> Judgement:
    """The router did not confirm the new weights."""
    return stated(Verdict.INCONCLUSIVE, "the router did not take the new weights", "router")


def does_not_answer(step: StepState, candidate_waits: int, stable_waits: int) -> Judgement | None:
    """The judgement if the split looks wrong only because requests hang at the candidate; None otherwise.

    A request is logged when it ends, or some time after it began, so one that hangs looks like one that the router
    never sent. More requests than are missing may be waiting: the log lags behind the router.

    Args:
        step: The step, of which the split contradicts the intended one.
        candidate_waits: Requests in flight at the candidate.
        stable_waits: The same at stable.
    """
    split = step.split
    if split.measured is None or split.measured >= split.intended:
        return None
    sent = SplitTest(intended=split.intended).observe(
        candidate_requests=split.candidate + candidate_waits,
        stable_requests=split.total - split.candidate + stable_waits,
    )
    sent_too_few = sent.rejects(_EXPLAINED_ALPHA) and (sent.measured or 0.0) < split.intended
    if not candidate_waits or sent_too_few:
        return None
    waiting = f"{candidate_waits} requests are waiting at the candidate, {stable_waits} at stable"
    detail = f"{waiting}, so the router did send the intended share"
    summary, name = f"the candidate does not answer at {step.percent}", "candidate's requests in flight"
    return stated(Verdict.NO_GO, summary, name, detail, measured=float(candidate_waits), samples=1)


def all_ended(percent: float) -> Judgement:
    """All servers of the place had ended, as after a power cut: that says nothing about the candidate."""
    words = f"stable's server and the candidate's had both ended at {percent:g} %"
    detail = f"{words}: the host was restarted, or ended them"
    return stated(Verdict.INCONCLUSIVE, words, "servers of the place", detail, measured=percent)


def with_death(judgement: Judgement, death: str) -> Judgement:
    """A judgement against the candidate, with what its server's log says of its engine's death; empty if nothing."""
    if not death:
        return judgement
    fact = Evidence(name="candidate's log", verdict=judgement.verdict, measured=1.0, samples=1, detail=death)
    words = f"{judgement.summary}; its log says: {death}"
    return judgement.model_copy(update={"summary": words, "evidence": (*judgement.evidence, fact)})


def died_since(death: str, began: float) -> bool:
    """Whether a line of a server's log about its engine's death has a time, and one since then."""
    try:
        return datetime.fromisoformat(death.partition(" ")[0]).timestamp() >= int(began)
    except ValueError:
        return False


def nobody_answered(percent: float, seconds: float) -> Judgement:
    """Nobody answered a canary's question before its deadline."""
    words = f"waited at {percent:g} % and nobody answered within {seconds:.0f} s"
    return stated(Verdict.INCONCLUSIVE, words, "approval", measured=percent)


def taken_back(phase: str, percent: float, by: str) -> Judgement:
    """The judgement of a canary that somebody rolled back before it ended; never GO."""
    detail = f"rolled back while {phase} at {percent:g} %: the candidate's judgement was not finished"
    return stated(Verdict.INCONCLUSIVE, f"rolled back at {percent:g} % by {by}", "canary", detail, measured=percent)
