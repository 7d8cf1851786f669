from __future__ import annotations

import math

import numpy as np
import pytest

from llm_pipeline.statistics.eprocess import (
    FACTORS,
    Bets,
    SplitTest,
    Variation,
    gained_by_level,
    gained_by_odds,
    mean_of_exponentials,
    sums_of_odds,
)

Blocks = list[tuple[int, int, int, int]]


def after(blocks: Blocks, *, ratio: float = 1.5, left_out: int = 0) -> Bets:
    bets = Bets.start(1, left_out=left_out)
    for e_c, e_s, n_c, n_s in blocks:
        bets = bets.plus([gained_by_odds((e_c, n_c), (e_s, n_s), ratio)], [sums_of_odds((e_c, n_c), (e_s, n_s))])
    return bets


def exactly(blocks: Blocks, ratio: float = 1.5) -> float:
    """Fisher's noncentral hypergeometric law, written out."""

    def chance(odds: float, e_c: int, e_s: int, n_c: int, n_s: int) -> float:
        ways = {
            k: math.comb(n_c, k) * math.comb(n_s, e_c + e_s - k) * odds**k for k in range(n_c + 1) if k <= e_c + e_s
        }
        return ways[e_c] / sum(ways.values())

    products = (
        math.prod(chance(ratio * factor, *block) / chance(ratio, *block) for block in blocks) for factor in FACTORS
    )
    return sum(products) / len(FACTORS)


def test_it_is_the_formula_and_without_data_it_is_one() -> None:
    blocks = [(6, 70, 10, 140), (0, 1, 7, 50), (40, 60, 60, 140), (5, 9, 5, 9), (3, 0, 4, 2), (0, 0, 9, 9)]
    assert after(blocks).values(1.5) == pytest.approx([exactly(blocks)], rel=1e-9)
    assert after([]).values(1.5) == [1.0]


def test_a_candidate_at_the_tolerated_limit_is_rejected_no_more_often_than_alpha() -> None:
    draws, base = np.random.default_rng(20261121), 0.1
    odds, rejected = 1.5 * base / (1.0 - base), 0
    for _ in range(60):
        n_c, n_s = draws.poisson(5, 60), draws.poisson(15, 60)
        e_c, e_s = draws.binomial(n_c, odds / (1.0 + odds)), draws.binomial(n_s, base)
        blocks = zip(*(x.tolist() for x in (e_c, n_c, e_s, n_s)), strict=True)
        gained = [
            gained_by_odds((mine, of_mine), (theirs, of_theirs), 1.5) for mine, of_mine, theirs, of_theirs in blocks
        ]
        rejected += bool((mean_of_exponentials(np.cumsum(gained, axis=0)) >= 20.0).any())
    assert rejected <= 3


def test_what_is_left_out_is_what_speaks_loudest() -> None:
    loud, quiet = [(45, 20, 50, 150)] * 3, [(8, 15, 50, 150)] * 4
    assert after([*quiet, *loud]).values(1.5)[0] > 1e9
    assert after([*quiet, *loud], left_out=3).values(1.5)[0] <= 1.0
    assert after(loud * 2, left_out=3).values(1.5)[0] > 1e9


def test_evidence_is_bounded_by_how_servers_vary_however_many_requests_there_are() -> None:
    """Three times the odds, where 1.5 times are tolerated, are log 2 beyond; then all requests against 40 %."""
    thrice = [(60, 30, 120, 120)] * 400
    assert after(thrice).values(1.5)[0] > 1e9
    assert after(thrice).values(1.5, [0.5])[0] < math.exp(math.log(2.0) ** 2 / (4 * 0.5))
    all_slow = after([(12, 4, 12, 10)] * 40, ratio=2.0, left_out=3)
    assert all_slow.values(2.0, [0.4])[0] > 240.0
    assert all_slow.values(2.0, [2.0])[0] < 80.0
    assert after([(3, 0, 12, 10)] * 20, left_out=3).values(1.5, [0.0])[0] > 240.0


def test_huge_evidence_does_not_overflow() -> None:
    bets = after([(1000, 0, 1000, 100_000)])
    assert math.isfinite(bets.values(1.5)[0])
    assert Bets.model_validate_json(bets.model_dump_json()) == bets


def test_a_level_is_exceeded_by_larger_shares_and_by_chance_no_more_often_than_alpha() -> None:
    draws = np.random.default_rng(20261121)

    def largest(share: float) -> float:
        logs, top = np.zeros(len(FACTORS)), 1.0
        for events in draws.binomial(50, share, size=40):
            logs += gained_by_level((int(events), 50), 0.1)
            top = max(top, float(np.exp(logs).mean()))
        return top

    assert sum(largest(0.1) >= 20.0 for _ in range(100)) <= 5
    assert all(largest(0.2) >= 20.0 for _ in range(20))


def test_the_variation_that_is_learned_is_that_of_the_servers_log_odds() -> None:
    draws = np.random.default_rng(5)
    odds = np.repeat(np.exp(draws.normal(-2.0, 0.4, 60)), 30)
    blocks = [(200, (int(events),)) for events in draws.binomial(200, odds / (1.0 + odds))]
    assert Variation.learned(blocks, 1).variances()[0] == pytest.approx(0.16, rel=0.4)
    steady = [(200, (int(events),)) for events in draws.binomial(200, 0.1, 1800)]
    assert Variation.learned(steady, 1).variances()[0] < 0.005
    one_burst = [(25, (0,))] * 45 + [(25, (5,))] + [(25, (0,))] * 14
    assert Variation.learned(one_burst, 1).variances()[0] < 1.0
    assert Variation.learned([], 1).variances() == [0.0]


def test_a_wrong_split_is_found_and_a_right_one_is_not() -> None:
    draws = np.random.default_rng(3)
    right = wrong = SplitTest(intended=0.25)
    for _ in range(100):
        n = int(draws.poisson(20))
        for_right, for_wrong = int(draws.binomial(n, 0.25)), int(draws.binomial(n, 0.10))
        right = right.observe(candidate_requests=for_right, stable_requests=n - for_right)
        wrong = wrong.observe(candidate_requests=for_wrong, stable_requests=n - for_wrong)
    everything = SplitTest(intended=1.0).observe(candidate_requests=500, stable_requests=0)
    assert not right.rejects(0.001)
    assert not everything.rejects(0.001)
    assert wrong.rejects(0.001)
    assert everything.observe(candidate_requests=0, stable_requests=1).rejects(0.001), "one request is decisive"
