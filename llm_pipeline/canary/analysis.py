"""What a canary remembers of its traffic: the state of every test, and how a window changes it. Pure functions.

Errors, latencies and what answers look like are tested continuously over the whole canary with anytime-valid tests;
`alpha` is split over the metrics, so that all looks at all of them together roll back a good candidate with
probability at most `alpha`. Errors have half of it: they are what a canary is for, and the rarest. A step passes when
nothing speaks against the candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.arm_counts import ArmCounts, Window, count
from llm_pipeline.canary.metric_events import MetricLimits
from llm_pipeline.canary.metric_tests import MetricState, begin_metric, hold, observe_metric
from llm_pipeline.canary.sessions import Sessions, Voters
from llm_pipeline.canary.slow_limits import Thresholds
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import SplitTest

_OF_ALL_KINDS = 2.0 / 3.0

ERRORS_SHARE = 0.5
"""Of `alpha`; the other metrics have equal parts of the rest."""

KIND_ALPHA_SHARE = ERRORS_SHARE * (1.0 - _OF_ALL_KINDS)
"""Of `alpha`, for the errors of all rare kinds of requests together."""

_MOST_CLIENTS = 32

LAST_SHARE = 0.95
"""From here on a step leaves too little to stable to compare with it alone."""


class StepState(Frozen):
    """What was seen since the current step began.

    Attributes:
        split: Of what counts once: requests, or sessions.
        clients: Clients are identified, and no single one may decide; see `Thresholds`.
        failed_in_a_row: Up to two clients behind the candidate's current run of failures.
        failed: How many requests of each client the candidate failed, at most; of those with the most failures.
        sessions: Those of the step, where sessions count.
        voters: Who had a vote on refusals at the step.
        looks: How often the step was looked at.
        silent_looks: How many looks at the end saw nothing at all.
    """

    share: float
    split: SplitTest
    candidate: ArmCounts = ArmCounts()
    stable: ArmCounts = ArmCounts()
    faults_in_a_row: int = 0
    clients: bool = False
    failed_in_a_row: tuple[str, ...] = ()
    failed: dict[str, int] = Field(default_factory=dict)
    sessions: Sessions = Sessions()
    voters: Voters = Voters()
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


class AnalysisState(Frozen):
    """Everything that the analysis remembers; stored, so that a resumed controller continues the same tests."""

    thresholds: Thresholds
    metrics: tuple[MetricState, ...]
    step: StepState | None = None


def begin(thresholds: Thresholds, policy: CanaryPolicy) -> AnalysisState:
    """The analysis of a canary without data."""
    shares = _alpha_shares(thresholds.metrics)
    metrics = (
        begin_metric(metric, share, thresholds, policy)
        for metric, share in zip(thresholds.metrics, shares, strict=True)
    )
    known = thresholds.model_copy(update={"learned": {}})  # from now on each metric has its own alpha share
    return AnalysisState(thresholds=known, metrics=tuple(metrics))


def _alpha_shares(metrics: Sequence[MetricLimits]) -> list[float]:
    """Errors get a fixed share of alpha, two thirds of it for all requests; other metrics split the rest evenly."""
    errors = sum(metric.name == "errors" for metric in metrics)
    of_errors = ERRORS_SHARE if errors < len(metrics) else 1.0
    of_all = of_errors if errors == 1 else of_errors * _OF_ALL_KINDS

    def share(metric: MetricLimits) -> float:
        if metric.name != "errors":
            return (1.0 - of_errors) / (len(metrics) - errors)
        return (of_errors - of_all) / (errors - 1) if metric.kind else of_all

    return [share(metric) for metric in metrics]


def begin_step(state: AnalysisState, share: float) -> AnalysisState:
    """The analysis at a new traffic share; the metrics' tests go on, the step's own counts start again.

    The last step leaves stable little or no traffic, so the candidate is also compared with stable's earlier steps.
    """
    metrics = tuple(map(hold, state.metrics)) if share >= LAST_SHARE else state.metrics
    step = StepState(share=share, split=SplitTest(intended=share), clients=state.thresholds.clients)
    return state.model_copy(update={"metrics": metrics, "step": step})


def observe(state: AnalysisState, seen: Window) -> AnalysisState:
    """The analysis after one more window.

    Raises:
        ValueError: No step has begun.
    """
    if state.step is None:
        raise ValueError("no step has begun")
    step = state.step
    sessions, units = step.sessions.observe(seen.sessions, seen.until, state.thresholds.session_seconds)
    voters, votes = step.voters.observe(seen.votes)
    of_candidate = sum(unit.on_trial for unit in units)
    run = step.faults_in_a_row + seen.trailing_faults if seen.all_faults else seen.trailing_faults
    of_run = seen.fault_clients[len(seen.fault_clients) - min(seen.trailing_faults, len(seen.fault_clients)) :]
    of_run = (*step.failed_in_a_row, *of_run) if seen.all_faults else of_run
    update = {
        "split": step.split.observe(
            candidate_requests=seen.candidate_units + of_candidate,
            stable_requests=seen.stable_units + len(units) - of_candidate,
        ),
        "candidate": step.candidate.plus(seen.candidate),
        "stable": step.stable.plus(seen.stable),
        "faults_in_a_row": run,
        "failed_in_a_row": tuple(dict.fromkeys(of_run))[:2],
        "failed": _failed(step.failed, seen.fault_clients),
        "voters": voters,
        "looks": step.looks + 1,
        "silent_looks": 0 if seen.saw_anything else step.silent_looks + 1,
        "sessions": sessions,
    }
    counts = (*seen.counts, *count((*units, *votes), state.thresholds))
    metrics = tuple(observe_metric(metric, counts, seen.began or seen.until, seen.until) for metric in state.metrics)
    return state.model_copy(update={"step": step.model_copy(update=update), "metrics": metrics})


def _failed(before: Mapping[str, int], clients: Iterable[str]) -> dict[str, int]:
    """A new client takes the place and the count of the one with the fewest (Space-Saving, Metwally et al. 2005).

    So no client has failed more often than its count says, and none has more than its own and an even share of all.
    """
    failed = dict(before)
    for client in clients:
        known = client in failed or len(failed) < _MOST_CLIENTS
        failed[client] = 1 + (failed.get(client, 0) if known else failed.pop(min(failed, key=failed.__getitem__)))
    return failed


MOST_LOOKS = 120
"""A record keeps so many, spread over the canary's time; more cannot be told apart in a plot."""

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
    """The looks and the newest, at most `MOST_LOOKS` of them; the first, the newest and each step's last one stay.

    The newest takes the place of the one before as long as that is near to its own predecessor in the same step.
    """
    kept = list(looks)
    newest = Look(
        at=at,
        percent=percent,
        regressed=tuple(_short(metric.value) for metric in state.metrics),
        split=_short(state.step.split.value) if state.step else 1.0,
    )
    if len(kept) > 1 and kept[-2].percent == kept[-1].percent == percent:
        nearest = 2.0 * (at - kept[0].at) / MOST_LOOKS
        if kept[-1].at - kept[-2].at < nearest:
            kept.pop()
    kept.append(newest)
    return tuple(_thinned(kept) if len(kept) > MOST_LOOKS else kept)


def _thinned(looks: list[Look]) -> list[Look]:
    """Every second one, and the last of every step."""
    following = [*looks[1:], None]
    return [
        look
        for number, (look, after) in enumerate(zip(looks, following, strict=True))
        if number % 2 == 0 or after is None or after.percent != look.percent
    ]


def _short(value: float) -> float:
    """Three digits."""
    return float(f"{min(value, LARGEST):.3g}")
