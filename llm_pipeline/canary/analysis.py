"""What the numbers of a canary mean: pure functions from two arms' windows to a decision with evidence.

Three metrics (errors, slow first token, slow end-to-end) are tested continuously over the whole canary with
anytime-valid tests; `alpha` is split over them, so that all looks at all of them together roll back a good
candidate with probability at most `alpha`. What "slow" means is fixed before the first step from stable's own
latencies. Low-traffic steps cannot prove parity and do not pretend to: a step passes when nothing speaks against
the candidate, and its evidence says whether parity was proven or only no regression seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from llm_pipeline.canary.eprocess import RateTest, SplitTest
from llm_pipeline.canary.observations import ObservedRequest, quantile
from llm_pipeline.canary.router import SlotName
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.verdict import Evidence, Judgement, Verdict, judge

MetricName = Literal["errors", "slow first token", "slow end to end"]

SPLIT_ALPHA = 0.001
"""A wrong split is a broken router or a wrong label: rare enough to ask for strong evidence."""

SLOW_FACTORS = (1.0, 2.0, 4.0, 8.0)
"""A request is judged against several limits at once, multiples of stable's quantile. One limit alone is blind when
the whole machine slows down: once half of stable's requests exceed it, nothing can exceed it twice as often."""

STABLE_BAD_FRACTION = 0.2
"""Stable failing this share of requests is an incident of its own: nobody is blamed or promoted meanwhile."""

ABSOLUTE_FAULT_FRACTION = 0.5
ABSOLUTE_FAULT_REQUESTS = 20
"""The second immediate guard: this share of faults in at least this many requests of a step."""


SlowCounts = tuple[int, ...]
"""Requests beyond each limit of `SLOW_FACTORS`."""

_NONE_SLOW: SlowCounts = (0,) * len(SLOW_FACTORS)


class Frozen(BaseModel):
    """Base of the states that are stored with the canary."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Thresholds(Frozen):
    """Beyond what a request is slow; None where stable had too little traffic of that kind."""

    first_token_milliseconds: float | None
    end_to_end_milliseconds: float
    requests: int


class ArmCounts(Frozen):
    """One arm in one window, or over one step."""

    requests: int = 0
    errors: int = 0
    faults: int = 0
    lost: int = 0
    answered: int = 0
    slow: SlowCounts = _NONE_SLOW
    streams: int = 0
    slow_streams: SlowCounts = _NONE_SLOW

    def plus(self, other: ArmCounts) -> ArmCounts:
        """Both together."""
        return ArmCounts(
            requests=self.requests + other.requests,
            errors=self.errors + other.errors,
            faults=self.faults + other.faults,
            lost=self.lost + other.lost,
            answered=self.answered + other.answered,
            slow=_added(self.slow, other.slow),
            streams=self.streams + other.streams,
            slow_streams=_added(self.slow_streams, other.slow_streams),
        )


class Window(Frozen):
    """Both arms between two looks.

    Attributes:
        trailing_faults: Candidate faults in a row at the window's end.
        all_faults: Every candidate request of the window was a fault, so the run of the last window goes on.
    """

    candidate: ArmCounts
    stable: ArmCounts
    trailing_faults: int
    all_faults: bool


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


class AnalysisState(Frozen):
    """Everything that the analysis remembers; stored, so that a resumed controller continues the same tests."""

    thresholds: Thresholds
    metrics: tuple[MetricState, ...]
    step: StepState | None = None


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


def fix_thresholds(requests: Iterable[ObservedRequest], policy: CanaryPolicy) -> Thresholds | None:
    """What "slow" will mean, from stable's requests before the first step; None while there are too few.

    First tokens are judged on streamed answers only, and only if stable had enough of them.
    """
    answered = [request for request in requests if not request.error and not request.cancelled]
    if len(answered) < policy.minimum_requests:
        return None
    first = [r.first_byte_milliseconds for r in answered if r.streaming and r.first_byte_milliseconds is not None]
    enough = len(first) * 5 >= policy.minimum_requests
    return Thresholds(
        first_token_milliseconds=quantile(first, policy.slow_quantile) if enough else None,
        end_to_end_milliseconds=quantile([r.total_milliseconds for r in answered], policy.slow_quantile) or 0.0,
        requests=len(answered),
    )


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


def window(requests: Sequence[ObservedRequest], candidate: SlotName, thresholds: Thresholds, since: float) -> Window:
    """Count both arms over requests that started at or after `since` (before it, another split was in force)."""
    current = sorted((r for r in requests if r.started_at >= since), key=lambda request: request.started_at)
    mine = [request for request in current if request.arm == candidate]
    trailing = 0
    for request in reversed(mine):
        if not request.fault:
            break
        trailing += 1
    return Window(
        candidate=_count(mine, thresholds),
        stable=_count([request for request in current if request.arm != candidate], thresholds),
        trailing_faults=trailing,
        all_faults=trailing == len(mine),
    )


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
    stable_is_bad = _stable_is_bad(step)
    if not stable_is_bad and (guard := _guard(step, policy)) is not None:
        return _decision(Outcome.REGRESSED, "the candidate fails request after request", [guard])
    split = _split_evidence(step)
    if split.verdict is Verdict.ANOMALOUS:
        return _decision(Outcome.ANOMALOUS, "traffic is not split as intended: no comparison is valid", [split])
    facts = [split, *(_metric_evidence(metric, state, policy) for metric in state.metrics)]
    if any(fact.verdict is Verdict.NO_GO for fact in facts):
        worse = ", ".join(fact.name for fact in facts if fact.verdict is Verdict.NO_GO)
        return _decision(Outcome.REGRESSED, f"worse than stable: {worse}", facts)
    if stable_is_bad:
        facts.append(_stable_evidence(step))
    facts += [_requests_evidence(step, policy), _lost_evidence(step)]
    return _bake(step, policy, elapsed_seconds, facts)


def parity_proven(state: AnalysisState, policy: CanaryPolicy) -> tuple[MetricName, ...]:
    """Metrics for which non-inferiority is proven; each at `alpha`, since all must hold to claim parity."""
    return tuple(metric.name for metric in state.metrics if metric.non_inferior.rejects(policy.alpha))


def _bake(step: StepState, policy: CanaryPolicy, elapsed_seconds: float, facts: list[Evidence]) -> Decision:
    ready = all(fact.verdict is Verdict.GO for fact in facts)
    if ready and elapsed_seconds >= policy.minimum_bake_seconds:
        return _decision(Outcome.PASS, f"no regression seen at {step.share:.0%}", facts)
    if elapsed_seconds >= policy.maximum_bake_seconds:
        summary = f"not decided after {elapsed_seconds:.0f} s at {step.share:.0%}"
        return _decision(Outcome.UNDECIDED, summary, facts)
    return _decision(Outcome.CONTINUE, f"baking at {step.share:.0%}", facts)


def _decision(outcome: Outcome, summary: str, facts: Iterable[Evidence]) -> Decision:
    return Decision(outcome=outcome, judgement=judge(summary, facts))


def _above(ratio: float) -> float:
    """The boundary of the non-inferiority test: with a tolerated ratio of exactly 1 nothing could ever be proven."""
    return max(ratio, 1.1)


def _count(requests: Sequence[ObservedRequest], thresholds: Thresholds) -> ArmCounts:
    answered = [request for request in requests if not request.error and not request.cancelled]
    first = [r.first_byte_milliseconds for r in answered if r.streaming and r.first_byte_milliseconds is not None]
    limit = thresholds.first_token_milliseconds
    return ArmCounts(
        requests=len(requests),
        errors=sum(request.error for request in requests),
        faults=sum(request.fault for request in requests),
        lost=sum(request.lost for request in requests),
        answered=len(answered),
        slow=_beyond([request.total_milliseconds for request in answered], thresholds.end_to_end_milliseconds),
        streams=len(first),
        slow_streams=_NONE_SLOW if limit is None else _beyond(first, limit),
    )


def _beyond(values: Sequence[float], limit: float) -> SlowCounts:
    return tuple(sum(value > factor * limit for value in values) for factor in SLOW_FACTORS)


def _added(mine: SlowCounts, theirs: SlowCounts) -> SlowCounts:
    return tuple(a + b for a, b in zip(mine, theirs, strict=True))


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


def _stable_is_bad(step: StepState) -> bool:
    stable = step.stable
    return stable.requests >= ABSOLUTE_FAULT_REQUESTS and stable.faults >= STABLE_BAD_FRACTION * stable.requests


def _guard(step: StepState, policy: CanaryPolicy) -> Evidence | None:
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


def _split_evidence(step: StepState) -> Evidence:
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


def _metric_evidence(metric: MetricState, state: AnalysisState, policy: CanaryPolicy) -> Evidence:
    """Judged over the whole canary; at 100 % there is no concurrent stable, and what was seen before stands."""
    required = len(state.metrics) / policy.alpha
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
            f"{limit.stable_events}/{metric.stable_requests}{_slow_limit(metric.name, state.thresholds, at)}; e-value "
            f"{metric.largest:.3g} (limit {required:.0f})"
        ),
    )


def _slow_limit(name: MetricName, thresholds: Thresholds, at: int) -> str:
    if name == "errors":
        return ""
    limit = thresholds.first_token_milliseconds if name == "slow first token" else thresholds.end_to_end_milliseconds
    return "" if limit is None else f" beyond {SLOW_FACTORS[at] * limit:.0f} ms"


def _stable_evidence(step: StepState) -> Evidence:
    return Evidence(
        name="stable itself",
        verdict=Verdict.INCONCLUSIVE,
        measured=step.stable.faults / step.stable.requests,
        limit=STABLE_BAD_FRACTION,
        unit="fraction",
        samples=step.stable.requests,
        detail="stable fails too: holding, because a failure of both arms is not the candidate's",
    )


def _requests_evidence(step: StepState, policy: CanaryPolicy) -> Evidence:
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


def _lost_evidence(step: StepState) -> Evidence:
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
