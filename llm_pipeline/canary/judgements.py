"""Judgements without statistics: what a controller finds when it starts or watches a candidate."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.analysis import StepState
from llm_pipeline.canary.evidence import MOST_MISSED, stable_is_bad
from llm_pipeline.canary.record import Phase, read_canary_record
from llm_pipeline.canary.router import RouteState
from llm_pipeline.canary.slots import WarmUp
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import SplitTest
from llm_pipeline.store.artifact_store import ArtifactStore

_EXPLAINED_ALPHA = 0.05
"""Requests that wait explain a split unless, counted in, they still contradict the intended one at this level. It is
looser than the level of the split's own test, because some requests are always in flight at a server that works."""


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
    name, answered = "first deployment: golden prompts answered", float(warm_up.answered)
    fact = Evidence(name=name, verdict=Verdict.GO, measured=answered, samples=warm_up.prompts, detail=detail)
    return judge("first deployment on this target", [fact])


def more_traffic(policy: CanaryPolicy, *, can_replay: bool) -> str:
    """How to get enough requests for a judgement, as advice.

    Args:
        policy: The canary's.
        can_replay: The users' port is known here, so that prompts can be replayed.
    """
    if not can_replay:
        return (
            "release while there is user traffic, or send requests to the users' address yourself while the canary "
            "runs: the pipeline does not know this router's users' address, so it replays nothing"
        )
    rate = policy.replay_requests_per_second
    if rate:
        return f"raise replay_requests_per_second ({rate:g} now) or maximum_bake_seconds under canary: of the policy"
    return (
        "have the canary replay prompts of the workload (replay_requests_per_second under canary: of the policy), or "
        "release while there is user traffic"
    )


def too_little_traffic(seen: int, policy: CanaryPolicy, *, can_replay: bool) -> Judgement:
    """Production has no traffic to compare with."""
    advice, minimum = more_traffic(policy, can_replay=can_replay), policy.minimum_requests
    detail = f"production has too little traffic to compare a candidate with: {advice}"
    fact = Evidence(
        name="stable's requests before the first step",
        verdict=Verdict.INCONCLUSIVE,
        measured=float(seen),
        samples=seen,
        limit=float(minimum),
        detail=detail,
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
    fact = Evidence(
        name="a person's decision",
        verdict=Verdict.GO,
        measured=percent,
        samples=max(1, requests),
        detail=f"accepted by {by}",
    )
    return judge(f"{by} let step {percent:g} % pass", [fact])


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
    rate = mine.failed / mine.requests
    fact = Evidence(
        name="errors beyond stable's", verdict=Verdict.GO, measured=rate, samples=mine.requests, detail=detail
    )
    return judge(f"undecided at {step.percent}, with no evidence against the candidate: the policy advances", [fact])


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


def _refused(summary: str, name: str, detail: str, *, measured: float = 0.0, samples: int = 1) -> Judgement:
    fact = Evidence(name=name, verdict=Verdict.NO_GO, measured=measured, samples=samples, detail=detail)
    return judge(summary, [fact])


def _open(summary: str, name: str, detail: str, measured: float | None = None) -> Judgement:
    """Nothing was measured that could decide."""
    fact = Evidence(name=name, verdict=Verdict.INCONCLUSIVE, measured=measured, samples=0, detail=detail)
    return judge(summary, [fact])


def _weights(state: RouteState) -> str:
    return ", ".join(f"{slot} {weight / 100:g} %" for slot, weight in sorted(state.weights.items()))


def judged_by_others(
    store: ArtifactStore, release_id: str, target: str, *, wait_seconds: float = 10.0
) -> Judgement | None:
    """The judgement of a canary that was taken from its controller; None if nobody rolled it back.

    Args:
        store: Where the canary's record is.
        release_id: The release that was on trial.
        target: The target's name.
        wait_seconds: How long their record of it is waited for: they fence the controller first.
    """

    def found() -> Judgement | None:
        record = read_canary_record(store, release_id, target)
        back = record is not None and record.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
        return record.judgement if record is not None and back else None

    wait_until(lambda: found() is not None, wait_seconds)
    return found()
