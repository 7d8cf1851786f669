"""Is the load gate calibrated? Verdicts and bounds on simulated servers of known latency, beside the naive rule.

    python benchmarks/load_gate.py              # about 10 minutes on two cores
    python benchmarks/load_gate.py --runs 2000  # tighter
    python benchmarks/load_gate.py --cells 'M/G/32|noisy'  # the lines whose name matches

A server whose limit is exactly its p95 (or p99) attains it, and not a bit more: a GO there is false, and may happen in
as many runs as the confidence leaves. So it is for windows that differ. "naive" is the point estimate that most tools
decide by: GO when the share of good requests is within the limit. Each run has three windows of seeds of their own, or
five; with looks, undecided runs are extended two or three times, by as many. As in a load test, a window half as long
as all of them came before: it is not judged.

One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from goals import at_least, at_most
from numpy.typing import NDArray

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.gate import SERVICE_LEVEL_MET, judge_windows
from llm_pipeline.loadtest.records import COLUMNS, Answered, Records, column_type

Seconds = NDArray[np.float64]
_LONG_RUNS, _LONG_REQUESTS = 400, 8000
_WARM = 3000
_PREFILL, _SPREAD = 0.05, 0.3


@dataclass(frozen=True)
class Lognormal:
    """Lognormal answers, times a factor that wanders: its logarithm is autoregressive, AR(1).

    Attributes:
        apart: Standard deviation of the factor's logarithm; with 0 the answers know nothing of one another.
        memory: Requests after which the factor has forgotten 63 % of what it was; each window keeps an infinite one's.
        spread: Standard deviation of the answers' logarithm beside it.
    """

    apart: float = 0.0
    memory: float = math.inf
    spread: float = 0.5

    @property
    def name(self) -> str:
        """For the table."""
        if not self.apart:
            return "independent"
        wanders = f"noisy neighbour, {self.memory:g} requests long"
        return wanders if self.wanders else f"windows that differ by {100 * self.apart:.0f} %"

    @property
    def wanders(self) -> bool:
        """Whether a window begins where the one before it ended."""
        return self.memory < math.inf

    def windows(self, count: int, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token, windows x requests."""
        kept = math.exp(-1.0 / self.memory)
        state, factors = random.normal(size=count), np.empty((count, requests))
        for place in range(requests):
            factors[:, place] = state
            state = kept * state + math.sqrt(1.0 - kept**2) * random.normal(size=count)
        return np.exp(self.apart * factors) * random.lognormal(0.0, self.spread, factors.shape)

    def quantile(self, share: float) -> float:
        """The exact quantile of the distribution over all windows that there could be."""
        return math.exp(math.hypot(self.apart, self.spread) * NormalDist().inv_cdf(share))


@dataclass(frozen=True)
class Queue:
    """M/G/k, first come first served: Poisson arrivals, lognormal service of mean 1, and a prefill beside the wait.

    Attributes:
        servers: Requests that are served at a time.
        load: Share of the capacity that is asked for.
        variation: Coefficient of variation of the service times.
    """

    servers: int
    load: float
    variation: float

    @property
    def name(self) -> str:
        """For the table."""
        service = f", service varies {self.variation:g}" if self.variation > 1.0 else ""
        return f"M/G/{self.servers} at {100 * self.load:.0f} %{service}"

    def windows(self, count: int, requests: int, random: np.random.Generator) -> Seconds:
        """Times to the first token, windows x requests, each window from the steady state."""
        spread = float(np.sqrt(np.log1p(self.variation**2)))
        free, now = np.zeros((count, self.servers)), np.zeros(count)
        waits = np.empty((count, requests))
        for place in range(-_WARM, requests):
            now += random.exponential(1.0 / (self.servers * self.load), count)
            started = np.maximum(now, free[:, 0])
            if place >= 0:
                waits[:, place] = started - now
            free[:, 0] = started + random.lognormal(-(spread**2) / 2.0, spread, count)
            free.sort(axis=1)
        return waits + _PREFILL * random.lognormal(0.0, _SPREAD, waits.shape)

    def quantile(self, share: float) -> float:
        """A quantile of the steady state, which no formula gives: of 3.2 million requests."""
        return float(np.quantile(self._steady, share))

    @cached_property
    def _steady(self) -> Seconds:
        return self.windows(_LONG_RUNS, _LONG_REQUESTS, np.random.default_rng(77)).ravel()


_NOISE = 0.99
_ANSWER = Answered(
    number=0,
    arrives_at=0.0,
    lag_seconds=1e-6,
    first_token_seconds=0.0,
    last_token_seconds=0.0,
    total_seconds=0.0,
    output_tokens=8,
    asked_tokens=8,
    status=200,
)


def records_of(first_token_seconds: Seconds) -> Records:
    """A window of answers with these times, one a second."""
    count = len(first_token_seconds)
    columns = {name: np.full(count, getattr(_ANSWER, name), dtype=column_type(name)) for name in COLUMNS}
    columns |= {
        "number": np.arange(count),
        "arrives_at": np.arange(count, dtype=np.float64),
    }
    columns |= {"first_token_seconds": first_token_seconds, "last_token_seconds": first_token_seconds + 0.1}
    return Records({**columns, "total_seconds": first_token_seconds + 0.1})


def by_chance(share: float, runs: int) -> float:
    """The share of runs that a calibrated gate exceeds in no more than one run of the benchmark in a hundred."""
    from scipy import stats

    return float(stats.binom.ppf(_NOISE, runs, share)) / runs


@dataclass(frozen=True)
class Case:
    """One server and what is claimed of it; `requests` a window."""

    server: Lognormal | Queue
    attainment: float
    confidence: float
    requests: int
    looks: int = 1
    windows: int = 3

    @property
    def name(self) -> str:
        """For the table and the goals."""
        looks = f", {self.looks} looks" if self.looks > 1 else ""
        windows = f", {self.windows} windows" if self.windows > 3 else ""
        few = f" of {self.requests}" if self.windows > 3 and self.requests < 300 else ""
        return f"{self.server.name}, p{100 * self.attainment:g} at {100 * self.confidence:g} %{windows}{few}{looks}"


@dataclass
class Seen:
    """What came of the runs of a case, by verdict; how often a bound was wrong; what the naive rule said."""

    verdicts: Counter[Verdict]
    naive_go: int = 0
    covered: int = 0
    requests: int = 0


_CASES = (
    Case(Lognormal(), 0.95, 0.95, 200),
    Case(Lognormal(), 0.95, 0.95, 200, looks=3),
    Case(Lognormal(), 0.99, 0.99, 600),
    Case(Lognormal(), 0.99, 0.99, 600, looks=3),
    Case(Queue(4, 0.7, 1.0), 0.95, 0.95, 600, looks=3),
    Case(Queue(4, 0.7, 1.0), 0.99, 0.99, 2000, looks=3),
    Case(Queue(16, 0.9, 1.0), 0.95, 0.95, 600, looks=3),
    Case(Queue(4, 0.7, 1.0), 0.95, 0.95, 480, looks=4, windows=5),
    Case(Queue(4, 0.7, 1.0), 0.99, 0.95, 1920, looks=4, windows=5),
    Case(Queue(32, 0.8, 1.0), 0.95, 0.95, 480, windows=5),
    Case(Queue(4, 0.7, 3.0), 0.95, 0.95, 480, windows=5),
    Case(Lognormal(0.3), 0.95, 0.95, 200),
    Case(Lognormal(0.3), 0.95, 0.95, 600, looks=3),
    Case(Lognormal(0.3), 0.99, 0.99, 2000),
    Case(Lognormal(0.3), 0.95, 0.95, 360, windows=5),
    Case(Queue(64, 0.85, 1.0), 0.95, 0.95, 480, windows=5),
    Case(Queue(64, 0.85, 1.0), 0.95, 0.95, 200, windows=5),
    Case(Queue(128, 0.9, 1.0), 0.95, 0.95, 480, windows=5),
    Case(Lognormal(0.3, 500.0), 0.95, 0.95, 480, windows=5),
    Case(Lognormal(0.3, 5000.0), 0.95, 0.95, 480, windows=5),
)
"""Nothing in the gate was chosen by the last three: more servers than in any other queue, and neighbours whose noise
lasts for one window, and for longer than the test."""
_DECIDED = (
    (Case(Lognormal(), 0.95, 0.95, 200, looks=3), 0.99, 0.88),
    (Case(Lognormal(), 0.99, 0.99, 600, looks=3), 0.999, 0.96),
    (Case(Queue(16, 0.5, 1.0), 0.95, 0.95, 600, looks=3), 0.999, 0.75),
    (Case(Queue(4, 0.7, 1.0), 0.95, 0.95, 2000, looks=3), 0.9999, 0.7),
)
"""Cases, with a quantile that a limit is kept at, and one that it is missed at."""


Line = tuple[Case, float, Verdict | None, int]
"""A case, the quantile that its limit is, the verdict that is wanted (None: none may be given), and the runs."""


def main() -> int:
    """Simulate, print the table and the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help="simulated load tests of each line, 200 or more")
    parser.add_argument("--seed", type=int, default=20_261_121)
    parser.add_argument("--cells", default="", help="only lines whose name matches this expression")
    options = parser.parse_args()
    runs, started = options.runs, time.monotonic()
    lines: list[Line] = [(case, case.attainment, None, runs) for case in _CASES]
    lines += [(case, good, Verdict.GO, runs // 2) for case, good, _ in _DECIDED]
    lines += [(case, bad, Verdict.NO_GO, runs // 2) for case, _, bad in _DECIDED]
    seeds = np.random.SeedSequence(options.seed).spawn(len(lines))
    chosen = [pair for pair in zip(lines, seeds, strict=True) if re.search(options.cells, pair[0][0].name)]
    print(f"{'server, claim':54} {'requests':>8} {'GO':>7} {'NO_GO':>7} {'covered':>8} {'naive GO':>9}")
    met, naive = [], []
    with ProcessPoolExecutor() as workers:
        limits = [case.server.quantile(quantile) for (case, quantile, _, _), _ in chosen]
        cases, counts = [line[0] for line, _ in chosen], [line[3] for line, _ in chosen]
        jobs = workers.map(simulate, cases, limits, counts, [seed for _, seed in chosen])
        for (line, _), seen in zip(chosen, jobs, strict=True):
            met += _goals(line, seen)
            naive += [seen.naive_go / runs] if line[2] is None else []
    if naive:
        met.append(at_least("false GO of the naive rule, the mildest case (why bounds are needed)", min(naive), 0.3))
    print(f"{runs:,} load tests a line, seed {options.seed}, {time.monotonic() - started:.0f} s")
    return 0 if all(met) else 1


def _goals(line: Line, seen: Seen) -> Iterator[bool]:
    """Where the limit is the claimed quantile itself every verdict is false; limits kept or missed clearly are decided.

    A gate that never says GO would be calibrated, too.
    """
    case, quantile, wanted, runs = line
    said = {verdict: seen.verdicts[verdict] / runs for verdict in (Verdict.GO, Verdict.NO_GO)}
    row = f"{seen.requests / runs:8,.0f} {said[Verdict.GO]:7.3f} {said[Verdict.NO_GO]:7.3f}"
    if wanted is None:
        print(f"{case.name:54} {row} {seen.covered / runs:8.3f} {seen.naive_go / runs:9.3f}")
        allowed = by_chance(1.0 - case.confidence, runs)
        yield at_most(f"false GO, {case.name}", said[Verdict.GO], allowed)
        yield at_most(f"false NO_GO, {case.name}", said[Verdict.NO_GO], allowed)
        if case.looks == 1:
            yield at_least(f"lower bound covers, {case.name}", seen.covered / runs, 1.0 - allowed)
    else:
        print(f"{f'{case.name}, limit at p{100 * quantile:g}':54} {row} {'':8} {seen.naive_go / runs:9.3f}")
        how = "kept" if wanted is Verdict.GO else "missed"
        yield at_least(f"{wanted.value} where p{100 * quantile:g} is {how}, {case.name}", said[wanted], 0.9)


def simulate(case: Case, limit: float, runs: int, seed: np.random.SeedSequence) -> Seen:
    """Run load tests of one case against a limit in seconds."""
    random = np.random.default_rng(seed)
    policy = LoadTestPolicy(
        service_level=ServiceLevel(first_token_milliseconds=1e3 * limit),
        attainment=case.attainment,
        confidence=case.confidence,
    )
    seen = Seen(Counter())
    for before, windows in _load_tests(case, runs, random):
        held: list[Records] = []
        for look in range(1, case.looks + 1):
            held += [records_of(window) for window in windows[case.windows * (look - 1) : case.windows * look]]
            judgement = judge_windows(held, policy, before=[records_of(before)], look=look, looks=case.looks)
            if look == 1:
                fact = next(fact for fact in judgement.evidence if fact.name == SERVICE_LEVEL_MET)
                seen.naive_go += fact.measured is not None and fact.measured >= case.attainment
                seen.covered += fact.lower is not None and fact.lower <= case.attainment
            if judgement.verdict is not Verdict.INCONCLUSIVE:
                break
        seen.verdicts[judgement.verdict] += 1
        seen.requests += sum(len(window) for window in held)
    return seen


def _load_tests(case: Case, runs: int, random: np.random.Generator) -> Iterator[tuple[Seconds, Seconds]]:
    """The window before each of so many load tests, and all windows that it may need."""
    most, block = case.windows * case.looks, 200
    for first in range(0, runs, block):
        count = min(block, runs - first)
        half = case.windows * case.requests // 2
        if isinstance(case.server, Lognormal) and case.server.wanders:
            whole = case.server.windows(count, half + most * case.requests, random)
            before, judged = whole[:, :half], whole[:, half:]
        else:
            judged = case.server.windows(count * most, case.requests, random)
            before = case.server.windows(count, half, random)
        yield from zip(before, judged.reshape(count, most, case.requests), strict=True)


if __name__ == "__main__":
    sys.exit(main())
