"""What a canary remembers of its traffic, how a window changes it, and what one look decides. Pure functions.

Each metric is tested over the whole canary by anytime-valid bets (see `eprocess`); `alpha` is split evenly over the
four, so that all looks at all of them together roll back a good candidate with probability at most `alpha`. A step
does not pass while the evidence against the candidate is half of that, in logarithms, or more.

Requests are counted in blocks of time, or longer ones until both arms have some. For latencies, the three blocks that
speak loudest against the candidate do not count, and what stable varies by itself is allowed for. Failures and empty
answers have neither: a burst of them is a fact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.canary.metrics import LATENCIES, METRICS, ArmCounts, BothCounts, Metric, Thresholds, Window
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import (
    Bets,
    Logs,
    OddsSums,
    SplitTest,
    Variation,
    gained_by_level,
    gained_by_odds,
    sums_of_level,
    sums_of_odds,
)

LAST_SHARE = 0.95
"""From here on a step leaves too little to stable to compare with it alone."""

NEGLIGIBLE_SHARE = 0.005
"""Of failed, empty or cut answers: the least level that the last step holds a candidate to."""

LOUD_BLOCKS = 3
"""So many blocks of time, which speak loudest, do not count in latencies: no stall of one server decides."""

SPLIT_ALPHA = 0.001
"""A wrong split is a broken router or a wrong label: rare enough to ask for strong evidence."""

STABLE_BAD_FRACTION = 0.2
"""If stable fails this share of requests, that is an incident: no candidate is judged or promoted meanwhile."""

ABSOLUTE_FAULT_FRACTION = 0.5
ABSOLUTE_FAULT_REQUESTS = 20
"""The second immediate guard: this share of faults in at least this many requests of a step."""

MOST_MISSED = 7.0
"""Expected requests whose absence is no chance: e**-7 is less than 0.001."""

_MOST_HELD = 0.95  # levels above this are not used: nothing can exceed them by much


class StepState(Frozen):
    """What was seen since the current step began.

    Attributes:
        looks: How often the step was looked at, and the source had news.
        silent_looks: How many of them at the end saw nothing at all.
    """

    share: float
    split: SplitTest
    candidate: ArmCounts = ArmCounts()
    stable: ArmCounts = ArmCounts()
    failed_in_a_row: int = 0
    looks: int = 0
    silent_looks: int = 0

    @property
    def missed(self) -> float:
        """Requests that were expected during the silence at the end, at the step's rate until then."""
        spoke = self.looks - self.silent_looks
        return self.silent_looks * (self.candidate.requests + self.stable.requests) / spoke if spoke else 0.0

    @property
    def percent(self) -> str:
        """The share for people, e.g. `25 %`."""
        return f"{self.share * 100:g} %"

    def __str__(self) -> str:
        mine, theirs = self.candidate, self.stable
        requests = f"{mine.requests} candidate and {theirs.requests} stable requests"
        return f"{requests}, failures {mine.failed} and {theirs.failed}"


class MetricState(Frozen):
    """One metric's tests over the whole canary.

    Attributes:
        ratio: The odds ratio that is tolerated.
        total: All counts so far.
        open: Those of the block that has begun.
        bets: On the blocks that ended, that the candidate's odds are larger.
        levels: At the last step: the candidate's share at each limit that is tolerated, from stable's earlier steps; 0
            where none is.
        held: The bets that its share is larger.
        held_open: What the block that has begun adds to them, in counts.
        variation: How stable's share varies; None where that is not allowed for.
        largest: The largest e-value so far.
    """

    name: Metric
    ratio: float
    total: BothCounts
    open: BothCounts
    bets: Bets
    levels: tuple[float, ...] = ()
    held: Bets
    held_open: BothCounts
    variation: Variation | None = None
    largest: float = 1.0

    @property
    def value(self) -> float:
        """The e-value that the candidate is worse than tolerated: the mean over the limits."""
        values = self.values
        return sum(values) / len(values)

    @property
    def values(self) -> list[float]:
        """By limit; at the last step the mean of the two comparisons."""
        variances = self.variation.variances() if self.variation else None
        compared = self.bets.plus(*_compared(self.open, self.ratio)).values(self.ratio, variances)
        if not self.levels:
            return compared
        held = self.held.plus(*_held(self.held_open, self.levels)).values(1.0, variances)
        return [(one + other) / 2.0 for one, other in zip(compared, held, strict=True)]

    @property
    def telling(self) -> int:
        """Index of the limit with the most evidence against the candidate; the first without any."""
        values = self.values
        return values.index(max(values)) if max(values) > 1.0 else 0

    def observe(self, counts: BothCounts | None, *, block_ends: bool) -> MetricState:
        """The tests after one more window, which may end a block of time."""
        metric = self
        if counts is not None:
            grown = {name: getattr(metric, name).plus(counts) for name in ("total", "open", "held_open")}
            metric = metric.model_copy(update=grown)
        metric = metric.model_copy(update={"largest": max(metric.largest, metric.value)})
        return metric.closed() if block_ends else metric

    def closed(self) -> MetricState:
        """The tests after the block has ended; one in which an arm has no requests goes on."""
        nothing, changes = BothCounts.none(len(self.bets.logs)), {}
        if self.open.candidate.requests and self.open.stable.requests:
            stable = self.open.stable
            changes = {
                "bets": self.bets.plus(*_compared(self.open, self.ratio)),
                "variation": self.variation and self.variation.observe(stable.requests, stable.events),
                "open": nothing,
            }
        if self.levels:
            changes["held"] = self.held.plus(*_held(self.held_open, self.levels))
        return self.model_copy(update={**changes, "held_open": nothing})

    def hold(self) -> MetricState:
        """The metric at the last step, compared with stable's earlier steps, too: stable has little traffic left.

        A level is the upper end of what stable's share may be, times the tolerated ratio; squared for latencies, since
        time has passed and the candidate has all the load now.
        """
        stable = self.total.stable
        if not stable.requests:
            return self
        levels = []
        for events in stable.events:
            share = min(_MOST_HELD, (events + 2.0 * (1.0 + math.sqrt(events + 1.0))) / stable.requests)
            odds = self.ratio**2 * share / (1.0 - share)
            level = odds / (1.0 + odds) if self.variation else max(NEGLIGIBLE_SHARE, self.ratio * share)
            levels.append(level if level < _MOST_HELD else 0.0)
        return self.model_copy(update={"levels": tuple(levels)})


def _compared(counts: BothCounts, ratio: float) -> tuple[list[Logs], list[OddsSums]]:
    """What a block adds to the logarithms and to the sums, by limit."""
    mine, theirs = counts.candidate, counts.stable
    arms = [
        ((mine_events, mine.requests), (their_events, theirs.requests))
        for mine_events, their_events in zip(mine.events, theirs.events, strict=True)
    ]
    return [gained_by_odds(*both, ratio) for both in arms], [sums_of_odds(*both) for both in arms]


def _held(counts: BothCounts, levels: Sequence[float]) -> tuple[list[Logs], list[OddsSums]]:
    """The same against the levels; a level of 0 holds nobody."""
    mine = counts.candidate
    arms = [
        ((events, mine.requests) if level else (0, 0), level or 0.5)
        for events, level in zip(mine.events, levels, strict=True)
    ]
    return [gained_by_level(*arm) for arm in arms], [sums_of_level(*arm) for arm in arms]


class AnalysisState(Frozen):
    """Everything that the analysis remembers; stored, so that a resumed controller continues the same tests.

    Attributes:
        unanswered: The candidate's slow requests without an answer when they were judged.
        block_age: Seconds since the block of time began.
    """

    thresholds: Thresholds
    metrics: tuple[MetricState, ...]
    unanswered: int = 0
    block_age: float = 0.0
    step: StepState | None = None


def regressed_at(policy: CanaryPolicy) -> float:
    """The e-value at which a metric has regressed."""
    return len(METRICS) / policy.alpha


def begin(thresholds: Thresholds, policy: CanaryPolicy) -> AnalysisState:
    """The analysis of a canary without data."""
    metrics = []
    for name, limits in thresholds.limits.items():
        slow, nothing = name in LATENCIES, BothCounts.none(len(limits))
        bets = Bets.start(len(limits), left_out=LOUD_BLOCKS if slow else 0)
        none = Variation.learned((), len(limits))
        metrics.append(
            MetricState(
                name=name,
                ratio=policy.slow_ratio if slow else policy.error_ratio,
                total=nothing,
                open=nothing,
                bets=bets,
                held=bets,
                held_open=nothing,
                variation=thresholds.variations.get(name, none) if slow else None,
            )
        )
    return AnalysisState(thresholds=thresholds, metrics=tuple(metrics))


def begin_step(state: AnalysisState, share: float) -> AnalysisState:
    """The analysis at a new traffic share; the metrics' tests go on, the step's own counts start again."""
    metrics = [metric.closed() for metric in state.metrics]  # a block has one split
    if share >= LAST_SHARE:
        metrics = [metric.hold() for metric in metrics]
    step = StepState(share=share, split=SplitTest(intended=share))
    return state.model_copy(update={"metrics": tuple(metrics), "step": step, "block_age": 0.0})


def observe(state: AnalysisState, seen: Window, seconds: float) -> AnalysisState:
    """The analysis after one more window, so many seconds after the last one.

    Raises:
        ValueError: No step has begun.
    """
    if state.step is None:
        raise ValueError("no step has begun")
    step = state.step
    step = step.model_copy(
        update={
            "split": step.split.observe(
                candidate_requests=seen.candidate.requests, stable_requests=seen.stable.requests
            ),
            "candidate": step.candidate.plus(seen.candidate),
            "stable": step.stable.plus(seen.stable),
            "failed_in_a_row": seen.failed_in_a_row + (step.failed_in_a_row if seen.all_failed else 0),
            "looks": step.looks + seen.news,
            "silent_looks": 0 if seen.saw_anything else step.silent_looks + seen.news,
        }
    )
    age = state.block_age + seconds
    ends = age >= state.thresholds.block_seconds
    metrics = tuple(metric.observe(seen.counts.get(metric.name), block_ends=ends) for metric in state.metrics)
    unanswered = state.unanswered + seen.unanswered
    changes = {"step": step, "metrics": metrics, "unanswered": unanswered, "block_age": 0.0 if ends else age}
    return state.model_copy(update=changes)


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


MOST_LOOKS = 120
"""A record keeps so many; more cannot be told apart in a plot."""

LARGEST = 1e12
"""Evidence beyond this says no more, and is no longer than other numbers in a document."""


class Look(Frozen):
    """All e-values at one look.

    Attributes:
        at: Seconds since 1970; in a timeline, since the canary began.
        percent: The step in force.
        regressed: By metric, in the order of the analysis: that the candidate is worse than tolerated.
        split: That the router does not split the traffic as it was told, since the step began.
    """

    at: float
    percent: float
    regressed: tuple[float, ...]
    split: float


def with_look(looks: Sequence[Look], state: AnalysisState, *, at: float, percent: float) -> tuple[Look, ...]:
    """The looks and the newest, at most `MOST_LOOKS` of them: every second one goes once there are more."""
    newest = Look(
        at=at,
        percent=percent,
        regressed=tuple(_short(metric.value) for metric in state.metrics),
        split=_short(state.step.split.value) if state.step else 1.0,
    )
    kept = looks if len(looks) < MOST_LOOKS else looks[::2]
    return (*kept, newest)


def _short(value: float) -> float:
    """Three digits."""
    return float(f"{min(value, LARGEST):.3g}")
