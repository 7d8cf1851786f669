"""The package's own analysis on hundreds of simulated canaries at once.

A test's e-value depends on counts alone, so that all runs of a look are computed together; the metrics, their tests and
alternatives and the e-value that rolls back are the package's own. `cross_check` asks its analysis, look by look.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from canary_allowance import independence, information
from canary_peers import first_look
from canary_traffic import LOOK_SECONDS, LOOKS, SAME, STRATA, Arm, Counts, Numbers

from llm_pipeline.canary.analysis import AnalysisState, begin, begin_step, observe
from llm_pipeline.canary.arm_counts import ArmCounts, ArmEvents, MetricCounts, Window
from llm_pipeline.canary.evidence import Outcome, decide, regression_limit
from llm_pipeline.canary.metric_events import MetricName
from llm_pipeline.canary.metric_tests import MetricState
from llm_pipeline.canary.slow_limits import SLOW_FACTORS, every_metric
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import RateTest

SLOW: tuple[MetricName, ...] = ("slow first token", "slow end to end")
"""Metrics that see the simulated latency, both the same; the others, errors aside, see no event and share `alpha`."""

_LARGEST_EXPONENT = 600.0
_EXACT_SUPPORT = 200


@dataclass(frozen=True)
class Analysis:
    """The analysis by one policy, of a step that is held for all looks."""

    policy: CanaryPolicy

    @property
    def limits(self) -> Numbers:
        """Beyond what requests are counted as slow, in milliseconds, rising."""
        quantiles = SAME.quantile(np.array(self.policy.slow_quantiles))
        return np.concatenate([quantiles, np.array(SLOW_FACTORS) * quantiles[-1]])

    @property
    def begun(self) -> AnalysisState:
        """Before the first request, with all metrics."""
        return begin(every_metric(self.policy), self.policy)

    def roll_backs(self, candidate: Arm, stable: Arm) -> Counts:
        """The look at which each run is rolled back; 0 for never."""
        state = self.begun
        rejected = np.zeros(candidate.p99.shape, dtype=bool)
        for metric in state.metrics:
            if metric.name not in ("errors", SLOW[0]):
                continue
            errors = metric.name == "errors"
            values = np.zeros(candidate.p99.shape)
            for number, limit in enumerate(metric.limits):
                mine, theirs = (arm.errors if errors else arm.slow[..., number] for arm in (candidate, stable))
                asked, served = (arm.requests if errors else arm.answered for arm in (candidate, stable))
                values += _tempered(limit.regressed, (mine, theirs), (asked, served)) / len(metric.limits)
            rejected |= values >= regression_limit(metric, self.policy)
        return first_look(rejected)

    def cross_check(self, candidate: Arm, stable: Arm, share: float, found: Counts, runs: int) -> int:
        """Of the first runs, how many the package's analysis decides otherwise."""
        return sum(self._differs(candidate, stable, share, int(found[run]), run) for run in range(runs))

    def _differs(self, candidate: Arm, stable: Arm, share: float, found: int, run: int) -> bool:
        state = begin_step(self.begun, share)
        for look in range(LOOKS):
            state = observe(state, self._window(candidate, stable, run, look))
            outcome = decide(state, self.policy, (look + 1) * LOOK_SECONDS).outcome
            if outcome is Outcome.REGRESSED:
                return look + 1 != found
            if outcome is Outcome.ANOMALOUS:  # a split that looks wrong by chance: nobody is blamed
                return False
        return found != 0

    def _window(self, candidate: Arm, stable: Arm, run: int, look: int) -> Window:
        metrics = (
            MetricCounts(
                name=metric.name,
                stratum=str(stratum),
                candidate=_events(candidate, metric, (stratum, run, look)),
                stable=_events(stable, metric, (stratum, run, look)),
            )
            for metric in self.begun.metrics
            for stratum in range(STRATA)
        )
        return Window(
            candidate=_requests(candidate, run, look),
            stable=_requests(stable, run, look),
            trailing_faults=0,
            all_faults=False,
            candidate_units=int(candidate.requests[:, run, look].sum()),
            stable_units=int(stable.requests[:, run, look].sum()),
            counts=tuple(metrics),
            began=1.0 + look * LOOK_SECONDS,
            until=1.0 + (look + 1) * LOOK_SECONDS,
        )


def e_values(test: RateTest, events: tuple[Counts, Counts], requests: tuple[Counts, Counts]) -> Numbers:
    """A test's e-value at every look of every run, as if every unit were a witness of its own.

    Args:
        test: Without data.
        events: Of the candidate and of stable; strata by runs by looks.
        requests: Likewise.
    """
    gained, _ = _gained(test, events, requests)
    return _mean_of_exponentials(gained.cumsum(axis=1))


def _tempered(test: RateTest, events: tuple[Counts, Counts], requests: tuple[Counts, Counts]) -> Numbers:
    """The same with the allowance for servers that waver; each look is a block of time."""
    gained, told = _gained(test, events, requests)
    arms = requests[0].sum(axis=0), requests[1].sum(axis=0)
    seen = arms[1], events[1].sum(axis=0)
    counted = independence(told, arms, seen, cautious=test.law == "odds")
    if test.most_a_block is not None:
        gained = np.minimum(gained, test.most_a_block)
    return _mean_of_exponentials(counted[..., None] * gained.cumsum(axis=1))


def _mean_of_exponentials(logs: Numbers) -> Numbers:
    return np.exp(np.minimum(logs, _LARGEST_EXPONENT)).mean(axis=2)


def _gained(test: RateTest, events: tuple[Counts, Counts], requests: tuple[Counts, Counts]) -> tuple[Numbers, Numbers]:
    """What each look adds: to the logarithm of each alternative, and to the information."""
    law = gained_by_odds if test.law == "odds" else _gained_by_rates
    ratios = np.array([*test.alternatives, test.ratio])
    counts = np.stack([*events, *requests]).astype(np.float64)
    _, strata, runs, looks = counts.shape
    gained, told_here = np.zeros((runs, looks, len(ratios) - 1)), np.zeros((runs, looks))
    waiting = np.zeros((4, strata, runs))
    for look in range(looks):
        waiting += counts[..., look]
        for stratum in range(strata):
            told = (waiting[2, stratum] > 0) & (waiting[3, stratum] > 0)
            here = waiting[:, stratum, told]
            shares = law(ratios, here)
            gained[told, look] += shares[:, :-1] - shares[:, -1:]
            told_here[told, look] += information((here[0], here[1]), (here[2], here[3]))
            waiting[:, stratum, told] = 0.0
    return gained, told_here


def _gained_by_rates(ratios: Numbers, counts: Numbers) -> Numbers:
    """Log-likelihoods of the binomial law, one row a run; `counts` are events and requests of both arms."""
    mine, theirs, candidate, stable = (row[:, None] for row in counts)
    both = candidate * ratios + stable
    return mine * np.log(candidate * ratios / both) + theirs * np.log(stable / both)


def gained_by_odds(ratios: Numbers, counts: Numbers) -> Numbers:
    """Log-likelihoods of Fisher's noncentral hypergeometric law; by Laplace's method where many counts are possible."""
    mine, theirs, candidate, stable = counts
    events = mine + theirs
    gained = np.zeros((counts.shape[1], len(ratios)))
    many = np.minimum(candidate, events) > _EXACT_SUPPORT
    for chosen, log_sum in ((many, _log_sum_by_laplace), (~many & (events > 0), _log_sum)):
        if chosen.any():
            sums = log_sum(ratios, candidate[chosen], stable[chosen], events[chosen])
            gained[chosen] = mine[chosen, None] * np.log(ratios) - sums
    return gained


def _log_sum(ratios: Numbers, candidate: Numbers, stable: Numbers, events: Numbers) -> Numbers:
    possible = np.arange(np.minimum(candidate, events).max() + 1)
    fits = (possible <= np.minimum(candidate, events)[:, None]) & (possible >= (events - stable)[:, None])
    inside = np.where(fits, possible, np.maximum(0, events - stable)[:, None])
    ways = np.where(fits, _log_ways(inside, candidate[:, None], stable[:, None], events[:, None]), -np.inf)
    logs = ways[:, None, :] + np.log(ratios)[:, None] * possible
    top = logs.max(axis=2)
    return top + np.log(np.exp(logs - top[..., None]).sum(axis=2))


def _log_sum_by_laplace(ratios: Numbers, candidate: Numbers, stable: Numbers, events: Numbers) -> Numbers:
    candidate, stable, events = candidate[:, None], stable[:, None], events[:, None]
    linear = ratios * (candidate + events) + stable - events
    product = ratios * candidate * events
    mode = 2.0 * product / (linear + np.sqrt(linear**2 - 4.0 * (ratios - 1.0) * product))
    sharpness = 1.0 / mode + 1.0 / (candidate - mode) + 1.0 / (events - mode) + 1.0 / (stable - events + mode)
    return _log_ways(mode, candidate, stable, events) + mode * np.log(ratios) + 0.5 * np.log(2.0 * np.pi / sharpness)


def _log_ways(mine: Numbers, candidate: Numbers, stable: Numbers, events: Numbers) -> Numbers:
    """Of so many events, `mine` among the candidate's requests, but for a constant."""
    from scipy.special import gammaln

    return -(
        gammaln(mine + 1)
        + gammaln(candidate - mine + 1)
        + gammaln(events - mine + 1)
        + gammaln(stable - events + mine + 1)
    )


def _events(arm: Arm, metric: MetricState, at: tuple[int, int, int]) -> ArmEvents:
    if metric.name == "errors":
        return ArmEvents(units=int(arm.requests[at]), events=(int(arm.errors[at]),))
    slow = tuple(map(int, arm.slow[at])) if metric.name in SLOW else (0,) * len(metric.limits)
    return ArmEvents(units=int(arm.answered[at]), events=slow)


def _requests(arm: Arm, run: int, look: int) -> ArmCounts:
    errors = int(arm.errors[:, run, look].sum())
    return ArmCounts(requests=int(arm.requests[:, run, look].sum()), errors=errors, faults=errors, lost=errors)
