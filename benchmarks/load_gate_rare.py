"""What comes rarely: spells of late requests, failed requests. Cells of `load_gate.py`.

A GO is held to its own words: it must name the stalls that it does not exclude, and be wrong about those that it does
in no more runs than the confidence leaves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from goals import at_least, at_most
from load_gate_servers import Spells, by_chance, records_of

from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.gate import judge_windows, probe_verdict
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.sample_size import shown_above

_WINDOWS = 5
_CAVEAT = re.compile(r"Stalls rarer than one in (.+?) are not excluded")
_PART = re.compile(r"([0-9.]+) (s|min|h)")
_MINUTE = 60.0
_SECONDS = {"s": 1.0, "min": _MINUTE, "h": 3600.0}


@dataclass(frozen=True)
class SpellCase:
    """Spells at exactly the limit, and a test of so many requests, one a second."""

    attainment: float
    requests: int

    @property
    def name(self) -> str:
        """For the table and the goals."""
        return f"spells of 50 late, p{100 * self.attainment:g} at 95 %, {self.requests:,} requests"


@dataclass(frozen=True)
class FailureCase:
    """A true share of failed requests, and a tolerated one; windows of 480, three looks."""

    true: float
    tolerated: float

    @property
    def name(self) -> str:
        """For the table and the goals."""
        return f"{100 * self.true:g} % fail, {100 * self.tolerated:g} % tolerated"


_SPELLS = (SpellCase(0.95, 600), SpellCase(0.95, 2000), SpellCase(0.95, 6000))
_FAILING = (FailureCase(0.001, 0.001), FailureCase(0.002, 0.001), FailureCase(0.005, 0.005))
_SELDOM = FailureCase(0.0005, 0.005)


def rare_cells(runs: int, seeds: np.random.SeedSequence, workers: Executor) -> Iterator[bool]:
    """All goals, in order."""
    yield from _spells(runs, seeds, workers)
    yield from _failures(runs, seeds, workers)


def _spells(runs: int, seeds: np.random.SeedSequence, workers: Executor) -> Iterator[bool]:
    jobs = workers.map(_spell_runs, _SPELLS, repeat(runs), seeds.spawn(len(_SPELLS)))
    for case, seen in zip(_SPELLS, jobs, strict=True):
        _print(case.name, seen, runs)
        yield at_most(f"GO without the stalls that it leaves open, {case.name}", seen["unsaid"], 0)
        yield at_most(f"GO that excludes what is there, {case.name}", seen["wrong"] / runs, by_chance(0.05, runs))


def _spell_runs(case: SpellCase, runs: int, seed: np.random.SeedSequence) -> Counter[str]:
    random, server = np.random.default_rng(seed), Spells(50, 1.0 - case.attainment)
    policy = LoadTestPolicy(
        service_level=ServiceLevel(first_token_milliseconds=1000.0),
        attainment=case.attainment,
    )
    each = case.requests // _WINDOWS
    seen = Counter[str]()
    for _ in range(runs):
        windows = [records_of(server.window(each, random)) for _ in range(_WINDOWS)]
        _count(judge_windows(windows, policy), server.period, seen)
    return seen


def _failures(runs: int, seeds: np.random.SeedSequence, workers: Executor) -> Iterator[bool]:
    cases = (*_FAILING, _SELDOM)
    for case, seen in zip(cases, workers.map(_failure_runs, cases, repeat(runs), seeds.spawn(len(cases))), strict=True):
        _print(case.name, seen, runs)
        if case is _SELDOM:
            yield at_least(f"GO, {case.name}", seen["GO"] / runs, 0.9)
        else:
            yield at_most(f"false GO, {case.name}", seen["GO"] / runs, by_chance(0.05, runs))
        if case.true <= case.tolerated:
            allowed = by_chance(0.05, runs)
            yield at_most(f"false NO_GO, {case.name}", seen["NO_GO"] / runs, allowed)
            yield at_most(f"probe of 300 requests ended by failures, {case.name}", seen["probe"] / runs, allowed)
            yield at_most(f"comparison of 1,200 requests ended by failures, {case.name}", seen["pair"] / runs, allowed)


def _failure_runs(case: FailureCase, runs: int, seed: np.random.SeedSequence) -> Counter[str]:
    random = np.random.default_rng(seed)
    policy = LoadTestPolicy(
        service_level=ServiceLevel(first_token_milliseconds=1000.0),
        attainment=0.95,
        maximum_error_fraction=case.tolerated,
    )

    def window(requests: int) -> Records:
        return records_of(random.lognormal(-2.0, 0.3, requests), failed=random.random(requests) < case.true)

    seen = Counter[str]()
    for _ in range(runs):
        held: list[Records] = []
        for look in (1, 2, 3):
            held += [window(480) for _ in range(_WINDOWS)]
            judgement = judge_windows(held, policy, look=look, looks=3)
            if judgement.verdict is not Verdict.INCONCLUSIVE:
                break
        _count(judgement, np.inf, seen)
        seen["probe"] += probe_verdict(window(300), policy) is not Verdict.GO
        seen["pair"] += shown_above(int(random.binomial(1200, case.true)), 1200, policy)
    return seen


def _count(judgement: Judgement, period: float, seen: Counter[str]) -> None:
    """One run: its verdict, and of a GO what it says of stalls that come once in a period."""
    seen[judgement.verdict.value] += 1
    if judgement.verdict is Verdict.GO:
        said = _CAVEAT.search(judgement.summary)
        seen["unsaid"] += said is None
        if said:
            excluded = sum(float(value) * _SECONDS[unit] for value, unit in _PART.findall(said[1]))
            seen["wrong"] += period <= excluded


def _print(name: str, seen: Counter[str], runs: int) -> None:
    print(f"{name:72} GO {seen['GO'] / runs:.3f} NO_GO {seen['NO_GO'] / runs:.3f}")
