"""The comparison with production: both versions in turn on the same host, with the same requests.

    outcome, evidence = compare(candidate, production, source, policy, 20.0, production_name="repository/4f...", seed=7)

A round is two windows of the same traffic, one per server, in alternating order. Effects of the host on both (a
neighbour, heat, a lower clock) cancel in their ratio, and a slow drift cancels in the mean over rounds; a figure stored
last month would contain both. Requests of one window share a queue, rounds are independent: the interval of a ratio is
Student's t of the rounds' log ratios.

All windows force a number of tokens, so they cannot show a model that rambles or stops early: a quantized model that
misses its end token costs users time and owners tokens, at any latency. So the lengths of answers that may end by
themselves are compared, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
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
from llm_pipeline.loadtest.records import Fault, Records, same_requests
from llm_pipeline.loadtest.sample_size import share_bounds, shown_above
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.statistics.intervals import critical_value
from llm_pipeline.statistics.spending import early, nominal_level

if TYPE_CHECKING:
    from llm_pipeline.loadtest.measure import LoadClient, MeasuredWindow
    from llm_pipeline.loadtest.workload import TrafficSource

ALPHA = 0.025
"""Error of each bound of a ratio, all looks together: two-sided 95 %."""

_MOST_VOID_ROUNDS = 3
_FEWEST_REQUESTS = 10
_COMPARISON_NAME = "comparison with production"
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
    """Compare the speed and the length of answers of the candidate with those of production.

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
    traffic = (source.open_loop(rate_per_second, regression.window_seconds, seed + n) for n in itertools.count())
    rounds, void = _measure(_Servers(candidate, production, policy), traffic, regression)
    if len(rounds) < regression.rounds:
        return RegressionOutcome(production=production_name), (_too_few(len(rounds), void, regression),)
    speed = judge_rounds(rounds, regression)
    prompts = source.natural(policy.minimum_requests, seed)
    length, drift = compare_lengths(candidate, production, prompts, regression)
    ratios = (*(ratio for ratio, _ in speed), *length)
    facts = (*(fact for _, fact in speed), _failures(rounds, policy), drift)
    return RegressionOutcome(production=production_name, ratios=ratios), facts


def _measure(servers: _Servers, traffic: Iterator[Traffic], regression: Regression) -> tuple[list[Round], list[str]]:
    """Rounds until they decide or reach the maximum, and why others did not count.

    The first round only warms up: production's version was just started, the candidate was not.
    """
    servers.round(next(traffic), production_first=True)
    rounds, void = list[Round](), list[str]()
    while len(rounds) < regression.maximum_rounds and len(void) <= _MOST_VOID_ROUNDS:
        found = servers.round(next(traffic), production_first=len(rounds) % 2 == 1)
        if isinstance(found, str):
            _log.warning("a round is not counted", reason=found)
            void.append(found)
            continue
        rounds.append(found)
        if len(rounds) >= regression.rounds and _decided(judge_rounds(rounds, regression)):
            break
    return rounds, void


@dataclass(frozen=True)
class _Servers:
    candidate: LoadClient
    production: LoadClient
    policy: LoadTestPolicy

    def round(self, traffic: Traffic, *, production_first: bool) -> Round | str:
        """Send the same traffic to one server and then to the other; returns why, if the round does not count."""
        if production_first:
            production, candidate = self.production.send(traffic), self.candidate.send(traffic)
        else:
            candidate, production = self.candidate.send(traffic), self.production.send(traffic)
        return _void(candidate, production, self.policy) or _round(candidate, production)


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
    """The ratio of each measure in the rounds, and its evidence.

    The bounds hold at all looks together: each look tests at a level of its own (Pocock's, by Lan and DeMets'
    spending), with Student's quantile at that level, and the interval is as wide as that asks for (C. Jennison and
    B. W. Turnbull, Group Sequential Methods (2000): group sequential t-tests and repeated confidence intervals).
    """
    shares = tuple(look / regression.maximum_rounds for look in range(regression.rounds, len(rounds) + 1))
    reach = critical_value(1.0 - nominal_level(shares, early, ALPHA), len(rounds) - 1)
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


def _decided(found: Sequence[tuple[Ratio, Evidence]]) -> bool:
    verdicts = [fact.verdict for _, fact in found]
    return Verdict.NO_GO in verdicts or Verdict.INCONCLUSIVE not in verdicts


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
        name=_COMPARISON_NAME,
        verdict=Verdict.INCONCLUSIVE,
        measured=float(counted),
        limit=float(regression.rounds),
        unit="rounds",
        samples=counted,
        detail=f"{len(void)} rounds were not counted. The last one: {void[-1]}",
    )


_USERS = 8
_LONGEST_SECONDS = 600.0
_FEWEST_ANSWERS = 10
_LENGTH_NAME = "length of answers, relative to production"


def compare_lengths(
    candidate: LoadClient, production: LoadClient, prompts: Sequence[LoadRequest], regression: Regression
) -> tuple[tuple[Ratio, ...], Evidence]:
    """Send prompts whose answers may end by themselves to both versions, and compare the mean lengths.

    Returns:
        The ratio, none with too few answers, and what it says: NO_GO when it is shown to be off by more than
        `maximum_length_drift` either way, GO when it is shown not to be.

    Raises:
        Transient: Nobody answers.
    """
    traffic = Traffic.closed_loop(prompts, min(_USERS, len(prompts)), _LONGEST_SECONDS)
    return judge_lengths(candidate.send(traffic).records, production.send(traffic).records, regression)


def judge_lengths(
    candidate: Records, production: Records, regression: Regression
) -> tuple[tuple[Ratio, ...], Evidence]:
    """The ratio of the mean lengths over the prompts that both answered, empty answers included.

    The interval is that of a ratio of paired means, linearised (W. G. Cochran, Sampling Techniques (1977), chapter 6).
    """
    drift = regression.maximum_length_drift
    ours, theirs = same_requests(candidate, production, (_ended(candidate), _ended(production)))
    lengths, reference = (records["output_tokens"].astype(float) for records in (ours, theirs))
    count = len(lengths)
    if count < _FEWEST_ANSWERS or not reference.any():
        return (), _too_few_answers(count, drift)
    ratio = float(lengths.sum() / reference.sum())
    error = float((lengths - ratio * reference).std(ddof=1)) / math.sqrt(count) / float(reference.mean())
    reach = critical_value(1.0 - ALPHA, count - 1) * error
    found = Ratio(
        measure="length of answers",
        ratio=ratio,
        lower=max(0.0, ratio - reach),
        upper=ratio + reach,
        candidate=float(lengths.mean()),
        production=float(reference.mean()),
        unit="tokens",
        rounds=1,
    )
    return (found,), _length_evidence(found, drift, count)


def _ended(records: Records) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(records["fault"], (Fault.NONE, Fault.EMPTY))


def _length_evidence(found: Ratio, drift: float, count: int) -> Evidence:
    lower, upper = found.lower or 0.0, found.upper or 0.0
    verdict = Verdict.INCONCLUSIVE
    if lower > 1.0 + drift or upper < 1.0 - drift:
        verdict = Verdict.NO_GO
    elif lower >= 1.0 - drift and upper <= 1.0 + drift:
        verdict = Verdict.GO
    return Evidence(
        name=_LENGTH_NAME,
        verdict=verdict,
        measured=found.ratio,
        lower=found.lower,
        upper=found.upper,
        limit=1.0 + drift if found.ratio >= 1.0 else 1.0 - drift,
        unit="ratio",
        samples=count,
        detail=f"{found.candidate:.4g} tokens on the same prompts, and {found.production:.4g} of production's version.",
    )


def _too_few_answers(count: int, drift: float) -> Evidence:
    return Evidence(
        name=_LENGTH_NAME,
        verdict=Verdict.INCONCLUSIVE,
        limit=1.0 + drift,
        unit="ratio",
        samples=count,
        detail=f"Both versions answered only {count} prompts, or production answered all of them without a token.",
    )
