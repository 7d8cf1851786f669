"""Does the canary's analysis blame the right ones, and how soon? Beside Flagger's rule and Kayenta's judge, simulated.

    make bench-canary                        # about a quarter of an hour on two cores
    python benchmarks/canary.py --runs 400   # tighter

A step is held for an hour and looked at each minute, by the package's own analysis. A cell is the share of runs that
are rolled back, and the median minute of those; with no change every rollback is a false one. Latency is lognormal
around 200 ms with a slow mode at 1.2 s. Counts beyond fixed limits are multinomial, and the p99 of a minute is an order
statistic of uniform numbers, which has a beta distribution.

Flagger (fluxcd/flagger, pkg/controller/scheduler_metrics.go): each check compares the candidate's success rate with
99 %, and its p99 with a fixed maximum; a metric without data is a failed check; five failed checks, which no success
takes back, roll back. Kayenta (spinnaker/kayenta, NetflixACAJudge.scala, MannWhitneyClassifier): a metric is High when
the lower end of the 98 % interval of the shift (Hodges and Lehmann) is above a quarter of its estimate, here on the
values of all minutes so far, every ten minutes; without data or with all values equal nothing is said.

One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product, repeat
from statistics import NormalDist

import numpy as np
from goals import at_least, at_most
from numpy.typing import NDArray

from llm_pipeline.canary.analysis import begin, begin_step, observe
from llm_pipeline.canary.arm_counts import ArmCounts, ArmEvents, MetricCounts, Window
from llm_pipeline.canary.evidence import Outcome, decide
from llm_pipeline.canary.metric_events import MetricName
from llm_pipeline.canary.metric_tests import MetricState
from llm_pipeline.canary.slow_limits import SLOW_FACTORS, every_metric
from llm_pipeline.config.policy import CanaryPolicy

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]

RATES, SHARES = (2.0, 20.0, 200.0), (0.01, 0.05, 0.25)
LOOKS, LOOK_SECONDS, STRATA = 60, 60.0, 3
POLICY = CanaryPolicy(
    minimum_bake_seconds=LOOKS * LOOK_SECONDS, maximum_bake_seconds=LOOKS * LOOK_SECONDS, block_seconds=LOOK_SECONDS
)
SLOW: tuple[MetricName, ...] = ("slow first token", "slow end to end")
"""Metrics that see the simulated latency, both the same; the others, errors aside, see no event and share `alpha`."""
_GRID = np.exp(np.linspace(math.log(5.0), math.log(50_000.0), 20_000))
_FLAGGER_CHECKS, _FLAGGER_SUCCESS, _FLAGGER_P99 = 5, 0.99, 1.5
_KAYENTA_CONFIDENCE, _KAYENTA_TOLERANCE, _KAYENTA_EVERY, _KAYENTA_FEWEST = 0.98, 0.25, 10, 5


@dataclass(frozen=True)
class Truth:
    """What a candidate does.

    Attributes:
        errors: Ratio of its error share to stable's 0.2 %.
        median_milliseconds: Of the first token.
        slow_mode: Share of its requests that are in the slow mode.
    """

    name: str
    errors: float = 1.0
    median_milliseconds: float = 200.0
    slow_mode: float = 0.005

    def distribution(self) -> Numbers:
        """Of the latency, over the grid."""
        from scipy import stats

        usual = stats.lognorm.cdf(_GRID, 0.5, scale=self.median_milliseconds)
        slow = stats.lognorm.cdf(_GRID, 0.4, scale=1200.0)
        return (1.0 - self.slow_mode) * usual + self.slow_mode * slow


SAME = Truth("no change")
TRUTHS = (
    SAME,
    Truth("3x errors", errors=3.0),
    Truth("50x errors", errors=50.0),
    Truth("1.3x median", median_milliseconds=260.0),
    Truth("tail 0.5 -> 3 %", slow_mode=0.03),
)
_, THREEFOLD, FIFTYFOLD, SLOWER, _ = TRUTHS


@dataclass(frozen=True)
class Arm:
    """One arm of one run: strata of prompts by looks, `slow` with the limits as its last axis.

    Attributes:
        p99: Milliseconds of all strata, by looks; NaN where a look has no requests.
    """

    requests: Counts
    errors: Counts
    answered: Counts
    slow: Counts
    p99: Numbers

    @property
    def error_shares(self) -> Numbers:
        """Of all strata, by looks; NaN where a look has no requests."""
        requests, errors = self.requests.sum(axis=0), self.errors.sum(axis=0)
        return np.where(requests > 0, errors / np.maximum(requests, 1), np.nan)

    def counts(self, look: int) -> ArmCounts:
        """Of one look."""
        errors = int(self.errors[:, look].sum())
        return ArmCounts(requests=int(self.requests[:, look].sum()), errors=errors, faults=errors, lost=errors)

    def events(self, metric: MetricState, at: tuple[int, int]) -> ArmEvents:
        """Of one metric in one stratum and look."""
        if metric.name == "errors":
            return ArmEvents(units=int(self.requests[at]), events=(int(self.errors[at]),))
        slow = tuple(map(int, self.slow[at])) if metric.name in SLOW else (0,) * len(metric.limits)
        return ArmEvents(units=int(self.answered[at]), events=slow)


def draw_arm(truth: Truth, rate: float, random: np.random.Generator) -> Arm:
    """An hour of `rate` requests a second."""
    quantiles = np.interp(POLICY.slow_quantiles, SAME.distribution(), _GRID)
    limits = np.concatenate([quantiles, np.array(SLOW_FACTORS) * quantiles[-1]])
    distribution = truth.distribution()
    requests = random.poisson(rate * LOOK_SECONDS / STRATA, size=(STRATA, LOOKS))
    errors = random.binomial(requests, min(1.0, 0.002 * truth.errors))
    answered = requests - errors
    beyond = 1.0 - np.interp(limits, _GRID, distribution)
    parts = random.multinomial(answered, -np.diff(np.concatenate([[1.0], beyond, [0.0]])))
    slow = answered[..., None] - parts.cumsum(axis=-1)[..., :-1]
    total = answered.sum(axis=0)
    order = 1.0 + 0.99 * np.maximum(total - 1, 0)  # between two values, as they are usually interpolated
    level = random.beta(order, np.maximum(total, 1) - order + 1.0)
    p99 = np.where(total > 0, np.interp(level, distribution, _GRID), np.nan)
    return Arm(requests, errors, answered, slow, p99)


def ours(candidate: Arm, stable: Arm, share: float) -> int:
    """The look at which it is rolled back; 0 for never."""
    state = begin_step(begin(every_metric(POLICY), POLICY), share)
    metrics = state.metrics
    for look in range(LOOKS):
        counts = (
            MetricCounts(
                name=metric.name,
                stratum=str(stratum),
                candidate=candidate.events(metric, (stratum, look)),
                stable=stable.events(metric, (stratum, look)),
            )
            for metric in metrics
            for stratum in range(STRATA)
        )
        window = Window(
            candidate=candidate.counts(look),
            stable=stable.counts(look),
            trailing_faults=0,
            all_faults=False,
            candidate_units=int(candidate.requests[:, look].sum()),
            stable_units=int(stable.requests[:, look].sum()),
            counts=tuple(counts),
            began=1.0 + look * LOOK_SECONDS,
            until=1.0 + (look + 1) * LOOK_SECONDS,
        )
        state = observe(state, window)
        outcome = decide(state, POLICY, (look + 1) * LOOK_SECONDS).outcome
        if outcome is Outcome.REGRESSED:
            return look + 1
        if outcome is Outcome.ANOMALOUS:  # a split that looks wrong by chance: nobody is blamed
            return 0
    return 0


def flagger(candidate: Arm) -> int:
    """The look at which it is rolled back; 0 for never."""
    most = _FLAGGER_P99 * float(np.interp(0.99, SAME.distribution(), _GRID))
    passed = (1.0 - candidate.error_shares >= _FLAGGER_SUCCESS) & (candidate.p99 <= most)  # false without requests
    failed = np.flatnonzero(~passed)
    return int(failed[_FLAGGER_CHECKS - 1]) + 1 if len(failed) >= _FLAGGER_CHECKS else 0


def kayenta(candidate: Arm, stable: Arm) -> int:
    """The look at which it is judged High in errors or in p99; 0 for never."""
    pairs = (candidate.error_shares, stable.error_shares), (candidate.p99, stable.p99)
    for look in range(_KAYENTA_EVERY, LOOKS + 1, _KAYENTA_EVERY):
        if any(_is_high(mine[:look], theirs[:look]) for mine, theirs in pairs):
            return look
    return 0


def _is_high(experiment: Numbers, control: Numbers) -> bool:
    mine, theirs = experiment[~np.isnan(experiment)], control[~np.isnan(control)]
    pairs = mine.size * theirs.size
    if min(mine.size, theirs.size) < _KAYENTA_FEWEST or mine.mean() < theirs.mean():
        return False
    normal = NormalDist().inv_cdf((1.0 + _KAYENTA_CONFIDENCE) / 2.0)
    rank = max(0, math.floor(pairs / 2 - normal * math.sqrt(pairs * (mine.size + theirs.size + 1) / 12.0)))
    shifts = np.partition((mine[:, None] - theirs).ravel(), [rank, pairs // 2])
    lower, estimate = float(shifts[rank]), float(shifts[pairs // 2])
    return lower > 0.0 and lower > _KAYENTA_TOLERANCE * abs(estimate)


Cell = tuple[float, float, Truth]


def simulate(cell: Cell, runs: int, seed: np.random.SeedSequence) -> Counts:
    """The looks at which runs of a cell are rolled back by us, Flagger and Kayenta: runs by rules."""
    (rate, share, truth), random = cell, np.random.default_rng(seed)
    looks = []
    for _ in range(runs):
        candidate, stable = draw_arm(truth, rate * share, random), draw_arm(SAME, rate * (1.0 - share), random)
        looks.append((ours(candidate, stable, share), flagger(candidate), kayenta(candidate, stable)))
    return np.array(looks)


def main() -> int:
    """Simulate, print the table and the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, help="simulated canaries of each cell")
    parser.add_argument("--seed", type=int, default=20_261_121)
    options = parser.parse_args()
    started, cells = time.monotonic(), list(product(RATES, SHARES, TRUTHS))
    print(f"{'requests/s x share, truth':34} {'ours':>14} {'Flagger':>14} {'Kayenta':>14}")
    found: dict[Cell, Counts] = {}
    with ProcessPoolExecutor() as workers:
        seeds = np.random.SeedSequence(options.seed).spawn(len(cells))
        for cell, looks in zip(cells, workers.map(simulate, cells, repeat(options.runs), seeds), strict=True):
            found[cell] = looks[:, 0]
            told = "".join(f" {_told(rule):>14}" for rule in looks.T)
            print(f"{f'{cell[0]:g} x {100 * cell[1]:g} %, {cell[2].name}':34}{told}", flush=True)
    met = list(_goals(found, options.runs))
    print(f"{options.runs:,} canaries a cell, seed {options.seed}, {time.monotonic() - started:.0f} s")
    return 0 if all(met) else 1


def _told(looks: Counts) -> str:
    caught = looks[looks > 0]
    return f"{len(caught) / len(looks):.3f}" + (f" ({np.median(caught):3.0f})" if len(caught) else "      ")


def _goals(found: dict[Cell, Counts], runs: int) -> Iterator[bool]:
    from scipy import stats

    same = [float((looks > 0).mean()) for (_, _, truth), looks in found.items() if truth is SAME]
    allowed = float(stats.binom.ppf(0.999, runs, POLICY.alpha)) / runs
    yield at_most("false rollbacks, worst of nine cells", max(same), allowed)
    yield at_most("false rollbacks, all cells", sum(same) / len(same), POLICY.alpha)
    yield at_least("50x errors caught at 2 x 1 %", float((found[2.0, 0.01, FIFTYFOLD] > 0).mean()), 0.9)
    yield at_least("3x errors caught at 200 x 25 %", float((found[200.0, 0.25, THREEFOLD] > 0).mean()), 0.95)
    looks = found[20.0, 0.05, SLOWER]
    minutes = float(np.median(np.where(looks > 0, looks, math.inf))) * LOOK_SECONDS / 60.0  # of all runs
    yield at_most("1.3x median caught at 20 x 5 %, median of all runs", minutes, 12.0, "min")


if __name__ == "__main__":
    sys.exit(main())
