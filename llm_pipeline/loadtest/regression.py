"""The comparison with production: both versions in turn on the same host, with the same requests.

    outcome, evidence = compare(candidate, production, source, policy, 20.0, production_name="repository/4f...", seed=7)

A round is two windows of the same traffic, one per server, in alternating order. Effects of the host on both (a
neighbour, heat, a lower clock) cancel in their ratio, and a slow drift cancels in the mean over rounds; a figure stored
last month would contain both. Requests of one window share a queue, rounds are independent: the interval of a ratio is
Student's t of the rounds' log ratios.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.policy import LoadTestPolicy, Regression
from llm_pipeline.loadtest.gate import void_reason
from llm_pipeline.loadtest.outcome import Ratio, RegressionOutcome
from llm_pipeline.loadtest.records import Records, same_requests
from llm_pipeline.loadtest.sample_size import share_bounds, shown_above
from llm_pipeline.statistics.intervals import critical_value

if TYPE_CHECKING:
    from llm_pipeline.loadtest.measure import LoadClient, MeasuredWindow
    from llm_pipeline.loadtest.workload import TrafficSource

ALPHA = 0.025
"""Error of each bound of a ratio: two-sided 95 %."""

_MOST_VOID_ROUNDS = 3
_FEWEST_REQUESTS = 10
_log = get_logger(__name__)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """One figure of a window.

    Attributes:
        of: The figure of the records of a window that lasted so many seconds; NaN where there is none.
        more_is_better: Throughput; otherwise the figure is a latency.
    """

    name: str
    unit: str
    of: Callable[[Records, float], float]
    more_is_better: bool = False

    def limit(self, regression: Regression) -> float:
        """The ratio of candidate to production beyond which the candidate is too slow."""
        return 1.0 / regression.maximum_ratio if self.more_is_better else regression.maximum_ratio


def _quantile(column: str, quantile: float) -> Callable[[Records, float], float]:
    def figure(records: Records, _seconds: float) -> float:
        values: Numbers = records.time_per_output_token_seconds if column == "pace" else records[column]
        known = values[~np.isnan(values)]
        return 1e3 * float(np.quantile(known, quantile)) if len(known) else math.nan

    return figure


MEASURES = (
    Measure("first token, p50", "ms", _quantile("first_token_seconds", 0.5)),
    Measure("first token, p90", "ms", _quantile("first_token_seconds", 0.9)),
    Measure("time per output token, p50", "ms", _quantile("pace", 0.5)),
    Measure("whole answer, p90", "ms", _quantile("total_seconds", 0.9)),
    Measure("output tokens", "tokens/s", lambda r, s: float(r["output_tokens"].sum()) / s, more_is_better=True),
)


@dataclass(frozen=True)
class Round:
    """The figures of two windows of the same traffic, by measure.

    Attributes:
        requests: Requests of the candidate's window.
        failed: Those that the candidate failed.
    """

    candidate: Numbers
    production: Numbers
    requests: int
    failed: int


def compare(
    candidate: LoadClient,
    production: LoadClient,
    source: TrafficSource,
    policy: LoadTestPolicy,
    rate_per_second: float,
    *,
    production_name: str,
    seed: int,
) -> tuple[RegressionOutcome, tuple[Evidence, ...]]:
    """Compare the speed of the candidate with that of production.

    Args:
        candidate: Sends to the candidate.
        production: Sends to a server of production's version beside it, never to production itself.
        source: Draws the traffic; each round has a seed of its own.
        policy: Its `regression` says how much slower is too slow.
        rate_per_second: Rate of the windows; both servers should hold their service level at it.
        production_name: What the candidate is compared with, for the reader.
        seed: Seed of the first round.

    Returns:
        The ratios, and for each what it says: NO_GO when the candidate is shown to be too slow, GO when it is shown
        not to be, INCONCLUSIVE otherwise.

    Raises:
        ConfigError: The policy asks for no comparison.
        Transient: Nobody answers.
    """
    regression = policy.regression
    if regression is None:
        raise ConfigError("the policy asks for no comparison with production", where="load_test.regression")
    rounds, void = list[Round](), list[str]()
    for number in itertools.count():  # the first round only warms up: production's version was just started
        traffic = source.open_loop(rate_per_second, regression.window_seconds, seed + number)
        if len(rounds) % 2 or not number:
            theirs, ours = production.send(traffic), candidate.send(traffic)
        else:
            ours, theirs = candidate.send(traffic), production.send(traffic)
        if not number:
            continue
        if reason := _void(ours, theirs, policy):
            _log.warning("a round is not counted", reason=reason)
            void.append(reason)
        else:
            rounds.append(_round(ours, theirs))
        if len(rounds) == regression.rounds:
            break
        if len(void) > _MOST_VOID_ROUNDS:
            return RegressionOutcome(production=production_name), (_too_few(len(rounds), void, regression),)
    speed = judge_rounds(rounds, regression)
    ratios = tuple(ratio for ratio, _ in speed)
    return RegressionOutcome(production=production_name, ratios=ratios), (
        *(fact for _, fact in speed),
        _failures(rounds, policy),
    )


def _void(candidate: MeasuredWindow, production: MeasuredWindow, policy: LoadTestPolicy) -> str:
    """Why a round says nothing about the candidate; empty when it does."""
    for window in (candidate, production):
        if reason := void_reason(window.records, policy):
            return reason
    judged = production.records.judged
    failed = len(judged) - int(judged.answered.sum())
    if len(judged) < _FEWEST_REQUESTS:
        return f"only {len(judged)} requests in a window: regression.window_seconds is too short for this rate"
    if shown_above(failed, len(judged), policy):
        said = next(iter(production.records.details.values()), "no reason given")
        return f"production's version failed {failed} of {len(judged)} requests: {said}"
    return ""


def _round(candidate: MeasuredWindow, production: MeasuredWindow) -> Round:
    """Both windows' figures over the requests that both answered: a failure must not make a server look fast."""
    judged = candidate.records.judged
    answered, answered_by_production = same_requests(candidate.records, production.records)
    found = Round(
        candidate=_figures(answered, candidate.window_seconds),
        production=_figures(answered_by_production, production.window_seconds),
        requests=len(judged),
        failed=len(judged) - int(judged.answered.sum()),
    )
    figures = zip(MEASURES, found.candidate.tolist(), found.production.tolist(), strict=True)
    ratios = {measure.name: round(ours / theirs, 4) for measure, ours, theirs in figures if theirs > 0.0}
    _log.info("compared one round with production", requests=len(answered), ratios=ratios)
    return found


def _figures(records: Records, seconds: float) -> Numbers:
    return np.array([measure.of(records, seconds) for measure in MEASURES])


def judge_rounds(rounds: Sequence[Round], regression: Regression) -> list[tuple[Ratio, Evidence]]:
    """The ratio of each measure in the rounds, and its evidence."""
    reach = critical_value(1.0 - ALPHA, len(rounds) - 1)
    candidate = np.array([figures.candidate for figures in rounds])
    production = np.array([figures.production for figures in rounds])
    found = []
    for place, measure in enumerate(MEASURES):
        ours, theirs = candidate[:, place], production[:, place]
        if not np.all((ours > 0.0) & (theirs > 0.0)):  # NaN too: nothing was streamed, or one token was asked for
            continue
        logs = np.log(ours / theirs)
        mean, width = float(logs.mean()), reach * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        ratio = Ratio(
            measure=measure.name,
            ratio=math.exp(mean),
            lower=math.exp(mean - width),
            upper=math.exp(mean + width),
            candidate=float(np.exp(np.log(ours).mean())),
            production=float(np.exp(np.log(theirs).mean())),
            unit=measure.unit,
            rounds=len(rounds),
        )
        found.append((ratio, _evidence(ratio, measure, regression)))
    return found


def _evidence(ratio: Ratio, measure: Measure, regression: Regression) -> Evidence:
    limit = measure.limit(regression)
    bounds = (ratio.lower or 0.0) / limit, (ratio.upper or math.inf) / limit
    fastest, slowest = (1.0 / bounds[1], 1.0 / bounds[0]) if measure.more_is_better else bounds
    verdict = Verdict.NO_GO if fastest > 1.0 else Verdict.INCONCLUSIVE if slowest > 1.0 else Verdict.GO
    return Evidence(
        name=f"{measure.name}, relative to production",
        verdict=verdict,
        measured=ratio.ratio,
        lower=ratio.lower,
        upper=ratio.upper,
        limit=limit,
        unit="ratio",
        samples=ratio.rounds,
        detail=f"{ratio.candidate:.4g} {ratio.unit}, and {ratio.production:.4g} of production's version beside it.",
    )


def _failures(rounds: Sequence[Round], policy: LoadTestPolicy) -> Evidence:
    """NO_GO for significantly too many failures; the confirmation has shown that they are few enough."""
    requests, failed = sum(r.requests for r in rounds), sum(r.failed for r in rounds)
    bounds = share_bounds(failed, max(1, requests), policy.confidence)
    return Evidence(
        name="failed requests beside production",
        verdict=Verdict.NO_GO if shown_above(failed, requests, policy) else Verdict.GO,
        measured=failed / max(1, requests),
        lower=bounds.lower,
        upper=bounds.upper,
        limit=policy.maximum_error_fraction,
        unit="fraction",
        samples=requests,
        detail=f"{failed} of {requests} requests." if failed else "None failed.",
    )


def _too_few(counted: int, void: Sequence[str], regression: Regression) -> Evidence:
    return Evidence(
        name="comparison with production",
        verdict=Verdict.INCONCLUSIVE,
        measured=float(counted),
        limit=float(regression.rounds),
        unit="rounds",
        samples=counted,
        detail=f"{len(void)} rounds were not counted. The last one: {void[-1]}",
    )
