"""How many requests does a server need that is twice as good as its limit? Cells of `load_gate.py`.

Beside them stands the gate before (`_before`). It took the largest autocorrelation time of misses and near misses, and
charged neither windows that differ nor spells that it had not seen. With 9,600 requests (p95) and 38,400 (p99) it
passed such a server nearly always. The goal: to pass it at least as often with a quarter of them.

What limits it: misses come in so few spells that even who knew how their number is distributed at the limit itself
could say GO to 88 % at 2,400 requests, and to 97 % at 9,600. Charging for windows that may differ leaves 70 and 94 %,
and learning from the same requests how they wait for one another costs the rest.

A test that is undecided is extended by new windows. So both gates also look after each quarter of the requests, until
they decide; the looks share the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from goals import at_least, at_most
from load_gate_servers import Queue, Seconds, by_chance, records_of

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.design_effect import autocorrelation_time
from llm_pipeline.loadtest.gate import judge_windows
from llm_pipeline.loadtest.sample_size import confidence_of_a_look, share_bounds

_SERVER = Queue(4, 0.7, 1.0)
_WINDOWS, _LOOKS = 5, 4
_AT_A_TIME = 50
_NEAR = (1.0, 0.75, 0.5, 0.25)
"""Shares of the limit beyond which a request was a miss or a near miss to the gate before."""

_Gate = Callable[[Sequence[Seconds], LoadTestPolicy, int, int], Verdict]


@dataclass(frozen=True)
class _Claim:
    """What is claimed, and the requests that the gate before took for it."""

    attainment: float
    requests: int

    @property
    def name(self) -> str:
        return f"{_SERVER.name}, p{100 * self.attainment:g}"

    def policy(self, times_as_good: float) -> LoadTestPolicy:
        limit = 1e3 * times_as_good * _SERVER.quantile(self.attainment)
        return LoadTestPolicy(
            service_level=ServiceLevel(first_token_milliseconds=limit), attainment=self.attainment, confidence=0.95
        )


@dataclass
class _Tests:
    """What came of some load tests of one gate."""

    go: int = 0
    requests: int = 0


@dataclass(frozen=True)
class _Seen:
    """Both gates on the same requests: all of them, a quarter of them, and a look after each quarter."""

    before_all: _Tests
    before_quarter: _Tests
    ours_quarter: _Tests
    before_looks: _Tests
    ours_looks: _Tests


_CLAIMS = (_Claim(0.95, 9600), _Claim(0.99, 38_400))


def extended_cells(runs: int, seeds: np.random.SeedSequence, workers: Executor) -> Iterator[bool]:
    """All goals, in order; a quarter of the runs, for these are the longest load tests."""
    count = max(100, runs // 4)
    for good, told in ((2.0, "half the limit"), (1.0, "the limit itself")):
        jobs = workers.map(_simulate, _CLAIMS, repeat(good), repeat(count), seeds.spawn(len(_CLAIMS)))
        for claim, seen in zip(_CLAIMS, jobs, strict=True):
            _print(f"{claim.name}, {told}", seen, count)
            yield from _power_goals(claim, seen, count) if good > 1.0 else _error_goals(claim, seen, count)


def _power_goals(claim: _Claim, seen: _Seen, runs: int) -> Iterator[bool]:
    quarter = f"GO of {claim.requests // _LOOKS:,} requests at half the limit, {claim.name}"
    target = f"(target: the gate before, of {claim.requests:,})"
    yield at_least(f"{quarter} {target}", seen.ours_quarter.go / runs, seen.before_all.go / runs)
    requests = f"requests of a test at half the limit, {claim.name}, {_LOOKS} looks (target: the gate before)"
    yield at_most(requests, seen.ours_looks.requests / runs, seen.before_looks.requests / runs)


def _error_goals(claim: _Claim, seen: _Seen, runs: int) -> Iterator[bool]:
    allowed = by_chance(0.05, runs)
    yield at_most(f"false GO, {claim.name}, a quarter", seen.ours_quarter.go / runs, allowed)
    yield at_most(f"false GO, {claim.name}, {_LOOKS} looks", seen.ours_looks.go / runs, allowed)


def _simulate(claim: _Claim, times_as_good: float, runs: int, seed: np.random.SeedSequence) -> _Seen:
    random, policy, length = (
        np.random.default_rng(seed),
        claim.policy(times_as_good),
        claim.requests // (_LOOKS * _WINDOWS),
    )
    seen = _Seen(*(_Tests() for _ in range(5)))
    for windows in _load_tests(runs, length, random):
        looks = [windows[: look * _WINDOWS] for look in range(1, _LOOKS + 1)]
        _test(_before, looks[-1:], policy, seen.before_all)
        _test(_before, looks[:1], policy, seen.before_quarter)
        _test(_ours, looks[:1], policy, seen.ours_quarter)
        _test(_before, looks, policy, seen.before_looks)
        _test(_ours, looks, policy, seen.ours_looks)
    return seen


def _load_tests(runs: int, length: int, random: np.random.Generator) -> Iterator[Sequence[Seconds]]:
    """All windows of each load test."""
    windows = _LOOKS * _WINDOWS
    for first in range(0, runs, _AT_A_TIME):
        count = min(_AT_A_TIME, runs - first)
        yield from _SERVER.windows(count * windows, length, random).reshape(count, windows, length)


def _test(gate: _Gate, looks: Sequence[Sequence[Seconds]], policy: LoadTestPolicy, tests: _Tests) -> None:
    """One load test: look until the gate decides."""
    for number, windows in enumerate(looks, start=1):
        verdict = gate(windows, policy, number, len(looks))
        if verdict is not Verdict.INCONCLUSIVE:
            break
    tests.go += verdict is Verdict.GO
    tests.requests += sum(len(window) for window in windows)


def _ours(windows: Sequence[Seconds], policy: LoadTestPolicy, look: int, looks: int) -> Verdict:
    return judge_windows([records_of(window) for window in windows], policy, look=look, looks=looks).verdict


def _before(windows: Sequence[Seconds], policy: LoadTestPolicy, look: int, looks: int) -> Verdict:  # noqa: ARG001
    """The gate before: requests count for as many as the autocorrelation of misses and near misses says."""
    limit = 1e-3 * (policy.service_level.first_token_milliseconds or 0.0)
    total, hits = sum(len(window) for window in windows), sum(int(np.sum(window <= limit)) for window in windows)
    effect = max(autocorrelation_time([window > near * limit for window in windows]) for near in _NEAR)
    bounds = share_bounds(hits, total, confidence_of_a_look(policy.confidence, looks), min(effect, float(total)))
    if bounds.lower >= policy.attainment:
        return Verdict.GO
    return Verdict.NO_GO if bounds.upper < policy.attainment else Verdict.INCONCLUSIVE


def _print(name: str, seen: _Seen, runs: int) -> None:
    lines = (
        ("the gate before", seen.before_all),
        ("the gate before, a quarter", seen.before_quarter),
        ("a quarter", seen.ours_quarter),
        (f"the gate before, {_LOOKS} looks", seen.before_looks),
        (f"{_LOOKS} looks", seen.ours_looks),
    )
    for line, tests in lines:
        print(f"{f'{name}, {line}':64} {tests.requests / runs:8,.0f} {tests.go / runs:7.3f}", flush=True)
