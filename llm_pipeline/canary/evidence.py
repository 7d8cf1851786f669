"""The decision of one look at a canary's step with its evidence, and the judgements that need no statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.analysis import AnalysisState, MetricState, StepState, regressed_at
from llm_pipeline.canary.metrics import Thresholds
from llm_pipeline.canary.router import RouteState
from llm_pipeline.canary.slots import WarmUp
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
    mine, theirs, fewest = step.candidate, step.stable, policy.minimum_requests
    if bad_stable:
        name, told = "stable's own failures", "stable fails too: no verdict while both versions fail"
        failed = theirs.failed / theirs.requests
        facts.append(_needed(name, False, failed, "fraction", theirs.requests, detail=told, limit=STABLE_BAD_FRACTION))
    enough, silent = mine.requests >= fewest, step.missed > MOST_MISSED or not step.looks
    name, told = "candidate requests at this step", "" if enough else "too little traffic to pass the step"
    facts.append(_needed(name, enough, mine.requests, "requests", mine.requests, detail=told, limit=float(fewest)))
    name, told = "data until the step's end", f"about {step.missed:.0f} requests were expected in that time"
    unit = "looks in a row without data"
    facts.append(_needed(name, not silent, step.silent_looks, unit, step.looks, detail=told if silent else ""))
    total, told = mine.requests + theirs.requests, f"candidate's arm {mine.lost}, stable's arm {theirs.lost}"
    name = "requests that failed for users at this step"  # information only: the test of errors decides
    facts.append(_needed(name, total > 0, mine.lost + theirs.lost, "requests", total, detail=told))
    ready = all(fact.verdict is Verdict.GO for fact in facts)
    if ready and elapsed_seconds >= policy.minimum_bake_seconds:
        return _decision(Outcome.PASS, f"no regression at {step.percent}", facts)
    if elapsed_seconds >= policy.maximum_bake_seconds:
        summary = f"not decided after {elapsed_seconds:.0f} s at {step.percent}"
        return _decision(Outcome.UNDECIDED, summary, facts)
    return _decision(Outcome.CONTINUE, f"baking at {step.percent}", facts)


def _needed(
    name: str, met: bool, measured: float, unit: str, samples: int, *, detail: str, limit: float | None = None
) -> Evidence:
    """What a step needs besides the comparison."""
    return Evidence(
        name=name,
        verdict=Verdict.GO if met else Verdict.INCONCLUSIVE,
        measured=float(measured),
        limit=limit,
        unit=unit,
        samples=samples,
        detail=detail,
    )


def _is_told(metric: MetricState) -> bool:
    """Whether a metric bears on the step: what stable showed before the canary may not come again.

    Failures and whole answers are there in any traffic, and without them no step passes.
    """
    shown = metric.total.candidate.requests + metric.total.stable.requests
    return shown > 0 or metric.name in ("failed answers", "slow end")


def _decision(outcome: Outcome, summary: str, facts: Iterable[Evidence]) -> StepDecision:
    return StepDecision(outcome=outcome, judgement=judge(summary, facts))


def answers_nothing(warm_up: WarmUp) -> Judgement:
    """The candidate's server runs and answers no golden prompt."""
    detail = "the candidate gives no answer"
    return _refused("the candidate does not answer", "golden prompts answered", detail, samples=warm_up.prompts)


def not_reached() -> Judgement:
    """The router's health checks do not accept the candidate."""
    detail = "the router's health checks do not accept the candidate"
    return _refused("the router does not reach the candidate", "candidate's health", detail)


def deployed_first(warm_up: WarmUp) -> Judgement:
    """Nothing was in production, so only the golden prompts can be judged."""
    detail = "nothing was in production on this target: no comparison was possible"
    name, summary = "first deployment: golden prompts answered", "first deployment on this target"
    return _passed(summary, name, detail, warm_up.answered, warm_up.prompts)


MORE_TRAFFIC = (
    "release while there is user traffic, or have the canary replay prompts of the workload, or more of them "
    "(replay_requests_per_second under canary: of the policy, where the router's users' address is known here)"
)
"""How to get enough requests for a judgement."""


def too_little_traffic(seen: int, policy: CanaryPolicy) -> Judgement:
    """Production has no traffic to compare with."""
    fact = Evidence(
        name="stable's requests before the first step",
        verdict=Verdict.INCONCLUSIVE,
        measured=float(seen),
        samples=seen,
        limit=float(policy.minimum_requests),
        detail=f"production has too little traffic to compare a candidate with: {MORE_TRAFFIC}",
    )
    return judge("too little traffic to compare with", [fact])


def not_acknowledged() -> Judgement:
    """The router did not confirm the new weights."""
    return _open("the router did not take the new weights", "router", "no acknowledgement of the new weights")


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
    return _refused(summary, name, detail, measured=float(candidate_waits))


def fails_in_a_row(percent: str, fact: Evidence) -> Judgement:
    """The candidate fails request after request, and stable, which had failed, answers again."""
    return judge(f"the candidate fails request after request at {percent}, and stable answers again", [fact])


def all_ended(percent: float) -> Judgement:
    """All servers of the place had ended, as after a power cut: that says nothing about the candidate."""
    words = f"stable's server and the candidate's had both ended at {percent:g} %"
    return _open(words, "servers of the place", f"{words}: the host was restarted, or ended them", percent)


def server_ended(percent: float) -> Judgement:
    """The candidate's process is gone."""
    summary = f"the candidate's server ended at {percent:g} %"
    return _refused(summary, "candidate's process", "the candidate's server ended")


def with_death(judgement: Judgement, death: str) -> Judgement:
    """A judgement against the candidate, with what its server's log says of its engine's death; empty if nothing."""
    if not death:
        return judgement
    fact = Evidence(name="candidate's log", verdict=judgement.verdict, measured=1.0, samples=1, detail=death)
    words = f"{judgement.summary}; its log says: {death}"
    return judgement.model_copy(update={"summary": words, "evidence": (*judgement.evidence, fact)})


def another_model(percent: str, differs: str) -> Judgement:
    """The server in the candidate's slot does not serve this release."""
    summary = f"the candidate's server does not serve this release at {percent}: {differs}"
    return _refused(summary, "candidate's golden answers", differs)


def source_down(reason: str) -> Judgement:
    """The source of metrics is down, so nothing can be concluded."""
    return _open("paused: the source of metrics is down", "source of metrics", reason)


def approval_asked(percent: float, command: str) -> Judgement:
    """A step that begins only after a person approved it."""
    detail = f"step {percent:g} % needs a person's approval: {command}"
    return _open(f"step {percent:g} % waits for an approval", "approval", detail)


def denied(percent: float, by: str) -> Judgement:
    """A person said no."""
    return _refused(f"{by} denied step {percent:g} %", "approval", f"denied by {by}", measured=percent)


def nobody_answered(percent: float, seconds: float) -> Judgement:
    """Nobody answered a canary's question before its deadline."""
    detail = f"nobody answered within {seconds:.0f} s"
    return _open(f"waited at {percent:g} % and {detail}", "approval", detail, percent)


def nobody_resumed(by: str, percent: float, seconds: float) -> Judgement:
    """A person paused the canary and nobody resumed it before the deadline."""
    detail = f"nobody resumed it within {seconds:.0f} s"
    return _open(f"{by} paused the canary at {percent:g} %, and {detail}", "pause", detail, percent)


def accepted(percent: float, by: str, requests: int) -> Judgement:
    """A person let a step pass that the tests had not passed."""
    summary = f"{by} let step {percent:g} % pass"
    return _passed(summary, "a person's decision", f"accepted by {by}", percent, max(1, requests))


def undecided_and_clean(step: StepState) -> Judgement | None:
    """The judgement that advances an undecided step if the policy allows it; None if any evidence is against it.

    The candidate must have answered requests, and its error rate must not exceed stable's. A failing stable is no
    excuse, and a candidate whose data has stopped arriving is not clean.
    """
    mine, theirs = step.candidate, step.stable
    if (
        not mine.requests
        or step.missed > MOST_MISSED
        or stable_is_bad(step)
        or mine.failed * max(1, theirs.requests) > theirs.failed * mine.requests
    ):
        return None
    detail = f"candidate {mine.failed}/{mine.requests}, stable {theirs.failed}/{theirs.requests}"
    summary = f"undecided at {step.percent}, with no evidence against the candidate: the policy advances"
    return _passed(summary, "errors beyond stable's", detail, mine.failed / mine.requests, mine.requests)


def superseded(by_release: str) -> Judgement:
    """A newer release takes over the target."""
    words = f"superseded by release {by_release}"
    return _open(words, "canary", words)


def unwatched(why: str, percent: float) -> Judgement:
    """The judgement of a canary that the guard found without a controller."""
    return _open(f"rolled back by the guard at {percent:g} %: {why}", "controller", why, percent)


def taken_back(phase: str, percent: float, by: str) -> Judgement:
    """The judgement of a canary that somebody rolled back before it ended; never GO."""
    detail = f"rolled back while {phase} at {percent:g} %: the candidate's judgement was not finished"
    return _open(f"rolled back at {percent:g} % by {by}", "canary", detail, percent)


def changed_from_outside(found: RouteState, known: Sequence[RouteState]) -> Judgement | None:
    """The judgement if another process changed the router; None if the router is in a known state.

    Args:
        found: What the router does.
        known: What it was told, most likely first.
    """
    if any(found.same_traffic(state) for state in known):
        return None
    detail = f"found {_weights(found)}, last told {_weights(known[0])}: somebody else changed the router"
    return _open("paused: the router was changed from outside", "router's weights", detail)


def _passed(summary: str, name: str, detail: str, measured: float, samples: int) -> Judgement:
    fact = Evidence(name=name, verdict=Verdict.GO, measured=float(measured), samples=samples, detail=detail)
    return judge(summary, [fact])


def _refused(summary: str, name: str, detail: str, *, measured: float = 0.0, samples: int = 1) -> Judgement:
    fact = Evidence(name=name, verdict=Verdict.NO_GO, measured=measured, samples=samples, detail=detail)
    return judge(summary, [fact])


def _open(summary: str, name: str, detail: str, measured: float | None = None) -> Judgement:
    """Nothing was measured that could decide."""
    fact = Evidence(name=name, verdict=Verdict.INCONCLUSIVE, measured=measured, samples=0, detail=detail)
    return judge(summary, [fact])


def _weights(state: RouteState) -> str:
    return ", ".join(f"{slot} {weight / 100:g} %" for slot, weight in sorted(state.weights.items()))
