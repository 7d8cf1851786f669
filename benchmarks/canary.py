"""Does the canary's analysis blame the right ones, and how soon? Beside Flagger's rule and Kayenta's judge, simulated.

    make bench-canary                        # a few minutes on two cores
    python benchmarks/canary.py --runs 400   # tighter

A step is held for an hour and looked at after each block of ten seconds, by the formulas and limits of the package's
own analysis (a few runs are given to the package itself, look by look, and must end alike). A cell is the share of
runs that are rolled back, and the median minute of all; with no change every rollback is a false one. Latency is
lognormal around 200 ms with a slow mode at 1.2 s, times a factor that the cell's noise makes: each server's own AR(1)
process of 10 s to 10 minutes with a standard deviation of 0.2, stalls of ten seconds every ten minutes, heavy tails, a
daily drift that both share, or a candidate that is three times slower for its first 30 s. Stable was seen for an hour
before, or for two or ten minutes.

Flagger (fluxcd/flagger, pkg/controller/scheduler_metrics.go): each minute's check compares the candidate's success
rate with 99 %, and its p99 with a fixed maximum; a metric without data is a failed check; five failed checks, which no
success takes back, roll back. Kayenta (spinnaker/kayenta, NetflixACAJudge.scala, MannWhitneyClassifier): a metric is
High when the lower end of the 98 % interval of the shift (Hodges and Lehmann) is above a quarter of its estimate, here
on the values of all minutes so far, every ten minutes; without data or with all values equal nothing is said.

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
from functools import lru_cache
from itertools import repeat
from statistics import NormalDist

import numpy as np
from goals import at_least, at_most
from numpy.typing import NDArray

from llm_pipeline.canary.analysis import LOUD_BLOCKS, Outcome, begin, begin_step, decide, observe, regressed_at
from llm_pipeline.canary.metrics import SLOW_FACTOR, ArmCounts, BothCounts, Counts, Limit, Thresholds, Window
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import (
    FACTORS,
    Bets,
    Variation,
    gained_by_odds,
    mean_of_exponentials,
    sums_of_odds,
    tempered,
)

Ints = NDArray[np.int64]
Numbers = NDArray[np.float64]

BLOCK_SECONDS, BLOCKS, PER_MINUTE = 10.0, 360, 6
POLICY = CanaryPolicy(minimum_bake_seconds=BLOCKS * BLOCK_SECONDS, maximum_bake_seconds=BLOCKS * BLOCK_SECONDS)
ERROR_SHARE = 0.002
_GRID = np.exp(np.linspace(math.log(5.0), math.log(50_000.0), 20_000))
_EDGES = np.exp(np.linspace(math.log(100.0), math.log(30_000.0), 40))
_FLAGGER_CHECKS, _FLAGGER_SUCCESS, _FLAGGER_P99 = 5, 0.99, 1.5
_KAYENTA_CONFIDENCE, _KAYENTA_TOLERANCE, _KAYENTA_EVERY, _KAYENTA_FEWEST = 0.98, 0.25, 10, 5


@dataclass(frozen=True)
class Truth:
    """What a candidate does: its errors by stable's, its median latency, and the share of its slow mode."""

    name: str
    errors: float = 1.0
    median_milliseconds: float = 200.0
    slow_mode: float = 0.005

    def beyond(self, limits: Numbers) -> Numbers:
        """Share of its latencies beyond limits in milliseconds."""
        return 1.0 - np.interp(limits, _GRID, self.distribution())

    def distribution(self) -> Numbers:
        """Of the latency, over the grid."""
        return _distribution(self.median_milliseconds, self.slow_mode)


@lru_cache
def _distribution(median: float, slow_mode: float) -> Numbers:
    from scipy import stats

    usual, slow = stats.lognorm.cdf(_GRID, 0.5, scale=median), stats.lognorm.cdf(_GRID, 0.4, scale=1200.0)
    found: Numbers = (1.0 - slow_mode) * usual + slow_mode * slow
    return found


@dataclass(frozen=True)
class Noise:
    """How one server wavers by itself; standard deviations are of the logarithm of latency.

    Attributes:
        seconds: Correlation time of an AR(1) process with a standard deviation of 0.2.
        heavy: Scale of independent factors of each block, of Student's distribution with three degrees of freedom.
        drift: Amplitude of a daily rise and fall that both servers share.
        stall_every: Seconds between two stalls of ten seconds; who comes then waits for its end.
        cold: Factor of a candidate's latencies in the first 30 s.
    """

    name: str
    seconds: float = 0.0
    heavy: float = 0.0
    drift: float = 0.0
    stall_every: float = 0.0
    cold: float = 1.0


SAME = Truth("no change")
THREEFOLD, FIFTYFOLD = Truth("3x errors", errors=3.0), Truth("50x errors", errors=50.0)
SLOWER, TAIL = Truth("1.3x latency", median_milliseconds=260.0), Truth("tail 0.5 -> 3 %", slow_mode=0.03)
TWICE = Truth("2x latency", median_milliseconds=400.0)

INDEPENDENT = Noise("independent")
SHORT = (
    INDEPENDENT,
    *(Noise(f"AR(1) of {seconds:g} s", seconds=seconds) for seconds in (10, 30, 120)),
    Noise("stalls", stall_every=600.0),
    Noise("stalls, AR(1) of 120 s", seconds=120.0, stall_every=600.0),
    Noise("heavy tails", heavy=0.1),
    Noise("drift", drift=0.3),
    Noise("cold", cold=3.0),
)
LONG = tuple(Noise(f"AR(1) of {seconds:g} s", seconds=seconds) for seconds in (300, 600))


@dataclass(frozen=True)
class Cell:
    """Requests a second of both arms, the candidate's share, minutes of stable's history, and what is so in truth."""

    rate: float
    share: float
    minutes: int
    noise: Noise = INDEPENDENT
    truth: Truth = SAME

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.rate:g} x {100 * self.share:g} %, {self.minutes} min, {self.noise.name}, {self.truth.name}"


SITES = ((20.0, 0.25, 60), (20.0, 0.05, 60), (5.0, 0.25, 10), (20.0, 0.25, 2))
CELLS = (
    *(Cell(*site, noise) for site in SITES for noise in (*SHORT, *LONG)),
    *(Cell(rate, share, 60) for rate, share in ((2.0, 0.01), (2.0, 0.25), (200.0, 0.01))),
    *(Cell(20.0, 0.25, 60, truth=truth) for truth in (THREEFOLD, SLOWER, TAIL)),
    *(Cell(20.0, 0.05, 60, truth=truth) for truth in (THREEFOLD, FIFTYFOLD, SLOWER, TAIL)),
    Cell(2.0, 0.01, 60, truth=FIFTYFOLD),
    *(Cell(20.0, 0.25, 60, noise, TWICE) for noise in (SHORT[1], SHORT[3], *SHORT[4:7])),
)


@dataclass(frozen=True)
class Arm:
    """One arm of all runs: runs by blocks; `slow` has the edges as its last axis."""

    requests: Ints
    errors: Ints
    slow: Ints

    def minutes(self) -> tuple[Numbers, Numbers]:
        """Error shares and p99, by minutes; NaN where a minute has no requests."""
        runs, blocks = self.requests.shape
        shape = (runs, blocks // PER_MINUTE, PER_MINUTE)
        requests, errors = (counts.reshape(shape).sum(axis=2) for counts in (self.requests, self.errors))
        slow = self.slow.reshape(*shape, -1).sum(axis=2)
        many = np.maximum(requests, 1)
        at = (slow > 0.01 * many[..., None]).sum(axis=2).clip(max=len(EDGES) - 1)
        return np.where(requests > 0, errors / many, np.nan), np.where(requests > 0, EDGES[at], np.nan)


def _limits() -> Numbers:
    quantiles = np.interp(POLICY.slow_quantiles, SAME.distribution(), _GRID)
    return np.append(quantiles, SLOW_FACTOR * quantiles[-1])


LIMITS = _limits()
EDGES = np.union1d(LIMITS, _EDGES)


def draw(cell: Cell, runs: int, random: np.random.Generator) -> tuple[Arm, Arm, Arm]:
    """Stable before the canary, the candidate, and stable beside it."""
    noise, before = cell.noise, cell.minutes * PER_MINUTE
    stable, candidate = (_wavering(noise, runs, length, random) for length in (before + BLOCKS, BLOCKS))
    days = np.arange(before + BLOCKS) * BLOCK_SECONDS / 86_400 + random.random((runs, 1))
    shared = noise.drift * np.sin(2 * np.pi * days)
    stable, candidate = stable + shared, candidate + shared[:, before:]
    candidate[:, :3] += math.log(noise.cold)
    stalled, stalled_too = (_stalled(noise, runs, length, random) for length in (before + BLOCKS, BLOCKS))
    return (
        _arm(SAME, cell.rate, stable[:, :before], stalled[:, :before], random),
        _arm(cell.truth, cell.rate * cell.share, candidate, stalled_too, random),
        _arm(SAME, cell.rate * (1.0 - cell.share), stable[:, before:], stalled[:, before:], random),
    )


def _wavering(noise: Noise, runs: int, blocks: int, random: np.random.Generator) -> Numbers:
    found = noise.heavy * random.standard_t(3, size=(runs, blocks)) if noise.heavy else np.zeros((runs, blocks))
    if noise.seconds:
        kept, value = math.exp(-BLOCK_SECONDS / noise.seconds), random.normal(size=runs)
        for block in range(blocks):
            found[:, block] += 0.2 * value
            value = kept * value + math.sqrt(1.0 - kept**2) * random.normal(size=runs)
    return found


def _stalled(noise: Noise, runs: int, blocks: int, random: np.random.Generator) -> Numbers:
    """The part of each block that lies within a stall."""
    if not noise.stall_every:
        return np.zeros((runs, blocks))
    moments = np.arange(100 * blocks) * BLOCK_SECONDS / 100
    within = (moments + random.random((runs, 1)) * noise.stall_every) % noise.stall_every < 10.0
    parts: Numbers = within.reshape(runs, blocks, 100).mean(axis=2)
    return parts


def _arm(truth: Truth, rate: float, factors: Numbers, stalled: Numbers, random: np.random.Generator) -> Arm:
    requests = random.poisson(rate * BLOCK_SECONDS, size=factors.shape)
    errors = random.binomial(requests, min(1.0, ERROR_SHARE * truth.errors))
    beyond = truth.beyond(EDGES / np.exp(factors)[..., None])
    if stalled.any():
        waits = np.linspace(0.0, 10_000.0, 101)[1:, None]
        waiting = truth.beyond(np.maximum(EDGES - waits, 1e-3)).mean(axis=0)
        beyond = beyond * (1.0 - stalled[..., None]) + waiting * stalled[..., None]
    slow = np.empty(beyond.shape, dtype=np.int64)
    left, before = requests - errors, np.ones(factors.shape)
    for number in range(len(EDGES)):
        left = random.binomial(left, np.clip(beyond[..., number] / np.maximum(before, 1e-12), 0.0, 1.0))
        slow[..., number], before = left, beyond[..., number]
    return Arm(requests, errors, slow)


def ours(before: Arm, candidate: Arm, stable: Arm) -> Ints:
    """The block at which each run is rolled back; 0 for never."""
    at = np.searchsorted(EDGES, LIMITS)
    answered = [arm.requests - arm.errors for arm in (before, candidate, stable)]
    found = []
    for run in range(len(candidate.requests)):
        failed = _value((candidate.errors[run], candidate.requests[run]), (stable.errors[run], stable.requests[run]))
        slow = np.zeros(BLOCKS)
        variances = _variances(
            np.concatenate([answered[0][run], answered[2][run]]),
            np.concatenate([before.slow[run][:, at], stable.slow[run][:, at]]),
            len(before.requests[run]),
        )
        for number, edge in enumerate(at):
            mine, theirs = (
                (candidate.slow[run, :, edge], answered[1][run]),
                (stable.slow[run, :, edge], answered[2][run]),
            )
            slow += _value(mine, theirs, variances[:, number]) / len(at)
        reached = np.flatnonzero(np.maximum(failed, slow) >= regressed_at(POLICY))
        found.append(int(reached[0]) + 1 if len(reached) else 0)
    return np.array(found)


def _value(mine: tuple[Ints, Ints], theirs: tuple[Ints, Ints], variances: Numbers | None = None) -> Numbers:
    """The e-value at one limit, by blocks; the formulas of `eprocess` and `analysis`."""
    ratio = POLICY.error_ratio if variances is None else POLICY.slow_ratio
    total, strongest, odds = (
        np.zeros(len(FACTORS)),
        np.zeros((LOUD_BLOCKS, len(FACTORS))),
        np.array(Bets.start(1).sums[0]),
    )
    logs, sums, held = np.empty((BLOCKS, len(FACTORS))), np.empty((BLOCKS, 2)), np.zeros(4, dtype=np.int64)
    for block, counts in enumerate(np.stack([*mine, *theirs], axis=1)):
        held += counts
        e_c, n_c, e_s, n_s = map(int, held)
        if n_c and n_s:
            gained = np.array(_gained((e_c, n_c), (e_s, n_s), ratio))
            total, odds = total + gained, odds + sums_of_odds((e_c, n_c), (e_s, n_s))
            strongest = np.sort(np.vstack([strongest, gained]), axis=0)[1:]
            held = np.zeros(4, dtype=np.int64)
        logs[block], sums[block] = total if variances is None else total - strongest.sum(axis=0), odds
    if variances is not None:
        logs = tempered(logs, sums, ratio, variances)
    return mean_of_exponentials(logs)


_gained = lru_cache(maxsize=1 << 18)(gained_by_odds)


def _variances(requests: Ints, slow: Ints, before: int) -> Numbers:
    """Of one server's log odds, as they are known at the end of each block of the canary, by limits."""
    history = [(int(n), tuple(map(int, e))) for n, e in zip(requests, slow, strict=True)]
    variation = Variation.learned(history[:before], slow.shape[1])
    found = []
    for n, e in history[before:]:
        found.append(found[-1] if found and variation.open[0] else variation.variances())
        variation = variation.observe(n, e)
    return np.array(found)


def the_packages(before: Arm, candidate: Arm, stable: Arm, run: int) -> int:
    """The block at which the package's own analysis rolls one run back; 0 for never."""
    at = np.searchsorted(EDGES, LIMITS)
    answered = before.requests - before.errors
    history = [(int(n), tuple(map(int, e[at]))) for n, e in zip(answered[run], before.slow[run], strict=True)]
    limits = tuple(Limit(milliseconds=limit, label="limit") for limit in LIMITS.tolist())
    thresholds = Thresholds(
        limits={"failed answers": (Limit(),), "slow end": limits},
        variations={"slow end": Variation.learned(history, len(limits))},
    )
    state = begin_step(begin(thresholds, POLICY), 0.5)
    for block in range(BLOCKS):
        failed, slow, arms = [], [], []
        for arm in (candidate, stable):
            requests, errors = int(arm.requests[run, block]), int(arm.errors[run, block])
            failed.append(Counts(requests=requests, events=(errors,)))
            slow.append(Counts(requests=requests - errors, events=tuple(map(int, arm.slow[run, block][at]))))
            arms.append(ArmCounts(requests=requests, failed=errors))
        counts = {
            "failed answers": BothCounts(candidate=failed[0], stable=failed[1]),
            "slow end": BothCounts(candidate=slow[0], stable=slow[1]),
        }
        seen = Window(candidate=arms[0], stable=arms[0], all_failed=False, counts=counts, saw_anything=True)  # type: ignore[arg-type]
        state = observe(state, seen, BLOCK_SECONDS)
        if decide(state, POLICY, (block + 1) * BLOCK_SECONDS).outcome is Outcome.REGRESSED:
            return block + 1
    return 0


def flagger(candidate: Arm) -> Ints:
    """The minute at which each run is rolled back; 0 for never."""
    errors, p99 = candidate.minutes()
    most = _FLAGGER_P99 * float(np.interp(0.99, SAME.distribution(), _GRID))
    passed = (1.0 - errors >= _FLAGGER_SUCCESS) & (p99 <= most)  # false without requests
    failed = (~passed).cumsum(axis=1) >= _FLAGGER_CHECKS
    return np.where(failed.any(axis=1), failed.argmax(axis=1) + 1, 0)


def kayenta(candidate: Arm, stable: Arm) -> Ints:
    """The minute at which each run is judged High in errors or in p99; 0 for never."""
    measures, found = list(zip(candidate.minutes(), stable.minutes(), strict=True)), []
    for run in range(len(candidate.requests)):
        minutes = range(_KAYENTA_EVERY, BLOCKS // PER_MINUTE + 1, _KAYENTA_EVERY)
        high = (n for n in minutes if any(_is_high(mine[run, :n], theirs[run, :n]) for mine, theirs in measures))
        found.append(next(high, 0))
    return np.array(found)


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


def simulate(cell: Cell, runs: int, seed: np.random.SeedSequence) -> tuple[Numbers, bool]:
    """The minutes at which runs are rolled back by us, Flagger and Kayenta, and whether the package decides alike."""
    before, candidate, stable = draw(cell, runs, np.random.default_rng(seed))
    blocks = ours(before, candidate, stable)
    alike = the_packages(before, candidate, stable, 0) == blocks[0]
    return np.stack([blocks / PER_MINUTE, flagger(candidate), kayenta(candidate, stable)]), alike


def main() -> int:
    """Simulate, print the table and the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="simulated canaries of each cell")
    parser.add_argument("--seed", type=int, default=20_261_127)
    options = parser.parse_args()
    started, found, unlike = time.monotonic(), {}, 0
    print(f"{'requests/s x share, history of stable, noise, truth':66} {'ours':>14} {'Flagger':>14} {'Kayenta':>14}")
    with ProcessPoolExecutor() as workers:
        seeds = np.random.SeedSequence(options.seed).spawn(len(CELLS))
        for cell, (minutes, alike) in zip(
            CELLS, workers.map(simulate, CELLS, repeat(options.runs), seeds), strict=True
        ):
            found[cell] = minutes[0]
            unlike += not alike
            print(f"{cell.name:66}{''.join(f' {_told(rule):>14}' for rule in minutes)}", flush=True)
    met = [*_goals(found, options.runs), at_most("runs that the package's own analysis decides otherwise", unlike, 0)]
    print(f"{options.runs:,} canaries a cell, seed {options.seed}, {time.monotonic() - started:.0f} s")
    return 0 if all(met) else 1


def _told(minutes: Numbers) -> str:
    median = _median(minutes)
    return f"{float((minutes > 0).mean()):.3f}" + (f" ({median:4.1f})" if math.isfinite(median) else "       ")


def _median(minutes: Numbers) -> float:
    return float(np.median(np.where(minutes > 0, minutes, math.inf)))  # of all runs


def _goals(found: dict[Cell, Numbers], runs: int) -> Iterator[bool]:
    from scipy import stats

    for what, noises, allowed in (("up to two minutes", SHORT, 0.05), ("of five and ten minutes", LONG, 0.1)):
        same = [
            float((minutes > 0).mean())
            for cell, minutes in found.items()
            if cell.truth is SAME and cell.noise in noises
        ]
        most = float(stats.binom.ppf(0.999, runs, allowed)) / runs  # what chance makes of so few runs
        yield at_most(f"false rollbacks where servers waver for {what}, worst cell", max(same), most)
        yield at_most(f"the same, all {len(same)} cells", sum(same) / len(same), allowed)
    for truth, minutes in ((THREEFOLD, TODAY_ERRORS), (SLOWER, TODAY_LATENCY)):
        cell = Cell(20.0, 0.25, 60, truth=truth)
        yield at_most(f"{truth.name} caught at 20 x 25 %, median", _median(found[cell]), 1.5 * minutes, "min")
    fifty = found[Cell(2.0, 0.01, 60, truth=FIFTYFOLD)]
    yield at_least("50x errors caught at 2 x 1 %", float((fifty > 0).mean()), 0.9)


TODAY_ERRORS, TODAY_LATENCY = 18.5, 2.1
"""Minutes in the median of the analysis before this one, which had thirteen metrics with requests as units."""


if __name__ == "__main__":
    sys.exit(main())
