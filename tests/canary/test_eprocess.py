from __future__ import annotations

import math

import numpy as np
import pytest

from llm_pipeline.statistics.eprocess import LevelTest, RateTest, SplitTest

Windows = list[tuple[int, int, int, int]]


def after(test: RateTest, windows: Windows) -> RateTest:
    for e_c, e_s, n_c, n_s in windows:
        test = test.observe(candidate_events=e_c, stable_events=e_s, candidate_requests=n_c, stable_requests=n_s)
    return test


def direct(test: RateTest, windows: Windows) -> float:
    """The formula of the module's docstring, written out."""
    total = 0.0
    for ratio in test.alternatives:
        product = 1.0
        for e_c, e_s, n_c, n_s in windows:
            p, p0 = n_c * ratio / (n_c * ratio + n_s), n_c * test.ratio / (n_c * test.ratio + n_s)
            product *= (p / p0) ** e_c * ((1 - p) / (1 - p0)) ** e_s
        total += product
    return total / len(test.alternatives)


def exactly(test: RateTest, windows: Windows) -> float:
    """Fisher's noncentral hypergeometric law, written out."""

    def chance(ratio: float, e_c: int, e_s: int, n_c: int, n_s: int) -> float:
        ways = {
            k: math.comb(n_c, k) * math.comb(n_s, e_c + e_s - k) * ratio**k for k in range(n_c + 1) if k <= e_c + e_s
        }
        return ways[e_c] / sum(ways.values())

    products = [
        math.prod(chance(ratio, *window) / chance(test.ratio, *window) for window in windows)
        for ratio in test.alternatives
    ]
    return sum(products) / len(products)


def rejections(
    test: RateTest, *, base: float, ratio: float, rate: float, share: float, looks: int, runs: int, alpha: float
) -> float:
    draws = np.random.default_rng(20261121)
    rejected = 0
    for _ in range(runs):
        state = test
        n_c, n_s = draws.poisson(rate * share, looks), draws.poisson(rate * (1 - share), looks)
        e_c, e_s = draws.binomial(n_c, min(1.0, base * ratio)), draws.binomial(n_s, base)
        for window in zip(e_c, e_s, n_c, n_s, strict=True):
            state = after(state, [tuple(int(value) for value in window)])
            if state.rejects(alpha):
                rejected += 1
                break
    return rejected / runs


def test_it_is_the_formula() -> None:
    windows = [(2, 3, 10, 190), (0, 1, 7, 150), (4, 2, 60, 140)]
    test = after(RateTest.start(1.5), windows)
    assert test.value == pytest.approx(direct(test, windows), rel=1e-9)


def test_for_odds_it_is_fishers_law() -> None:
    windows = [(6, 70, 10, 140), (0, 1, 7, 50), (40, 60, 60, 140), (5, 9, 5, 9), (3, 0, 4, 2)]
    test = after(RateTest.start(1.5, "odds"), windows)
    assert test.value == pytest.approx(exactly(test, windows), rel=1e-9)


def test_both_laws_agree_where_events_are_rare() -> None:
    windows = [(1, 3, 2_000, 18_000), (2, 2, 2_000, 18_000)]
    rates, odds = (after(RateTest.start(1.5, law), windows).value for law in ("rates", "odds"))
    assert rates == pytest.approx(odds, rel=0.02)


@pytest.mark.parametrize("base", [0.5, 0.1])
def test_odds_at_the_tolerated_limit_are_rejected_no_more_often_than_alpha(base) -> None:
    tolerated = 1.5 / (1.0 - base + 1.5 * base)  # this ratio of shares is that ratio of odds
    test = RateTest.start(1.5, "odds")
    found = rejections(test, base=base, ratio=tolerated, rate=20, share=0.25, looks=120, runs=150, alpha=0.05)
    assert found <= 0.05


def test_a_common_event_that_is_more_common_is_found_sooner_by_its_odds() -> None:
    windows = [(18, 240, 25, 475)] * 24
    rates, odds = (after(RateTest.start(ratio, law), windows) for ratio, law in ((1.2, "rates"), (1.5, "odds")))
    assert odds.value > 5 * rates.value > 5


def test_a_stratum_waits_for_its_own_arms() -> None:
    test = RateTest.start(1.5)
    for stratum, e_c, e_s, n_c, n_s in [("0", 0, 2, 0, 30), ("1", 1, 1, 9, 40), ("0", 3, 1, 12, 40)]:
        test = test.observe(
            candidate_events=e_c, stable_events=e_s, candidate_requests=n_c, stable_requests=n_s, stratum=stratum
        )
    assert test.value == pytest.approx(after(RateTest.start(1.5), [(3, 3, 12, 70), (1, 1, 9, 40)]).value)


def test_without_data_the_e_value_is_one() -> None:
    assert RateTest.start(1.5).value == 1.0


def test_a_window_with_an_empty_arm_waits_for_the_next_one() -> None:
    split = after(RateTest.start(1.5), [(0, 2, 0, 30), (3, 1, 12, 40)])
    whole = after(RateTest.start(1.5), [(3, 3, 12, 70)])
    assert split.value == pytest.approx(whole.value)


def test_a_stored_test_continues_as_the_same_test() -> None:
    windows = [(1, 3, 10, 190), (2, 2, 11, 201)]
    half = after(RateTest.start(2.0), windows[:1])
    resumed = RateTest.model_validate_json(half.model_dump_json())
    assert after(resumed, windows[1:]) == after(RateTest.start(2.0), windows)


def test_an_early_rejection_is_not_forgotten() -> None:
    test = after(RateTest.start(1.5), [(20, 0, 20, 380)])
    later = after(test, [(0, 40, 2000, 2000)] * 5)
    assert later.value < 1.0 < later.largest
    assert later.rejects(0.05)


def test_more_events_than_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0"):
        RateTest.start(1.5).observe(candidate_events=2, stable_events=0, candidate_requests=1, stable_requests=1)


@pytest.mark.parametrize(("base", "share", "ratio"), [(0.002, 0.05, 1.5), (0.1, 0.05, 2.0), (0.1, 0.5, 2.0)])
def test_a_candidate_at_the_tolerated_limit_is_rolled_back_no_more_often_than_alpha(base, share, ratio) -> None:
    found = rejections(
        RateTest.start(ratio), base=base, ratio=ratio, rate=20, share=share, looks=120, runs=200, alpha=0.05
    )
    assert found <= 0.05


def test_an_equal_candidate_is_practically_never_rolled_back() -> None:
    test = RateTest.start(1.5)
    assert rejections(test, base=0.02, ratio=1.0, rate=20, share=0.25, looks=120, runs=200, alpha=0.05) <= 0.01


def test_a_tenfold_error_rate_is_caught() -> None:
    test = RateTest.start(1.5)
    assert rejections(test, base=0.01, ratio=10.0, rate=20, share=0.25, looks=120, runs=100, alpha=0.05 / 3) >= 0.95


def test_a_wrong_split_is_found_and_a_right_one_is_not() -> None:
    draws = np.random.default_rng(3)
    right = wrong = SplitTest(intended=0.25)
    for _ in range(100):
        n = int(draws.poisson(20))
        for_right, for_wrong = int(draws.binomial(n, 0.25)), int(draws.binomial(n, 0.10))
        right = right.observe(candidate_requests=for_right, stable_requests=n - for_right)
        wrong = wrong.observe(candidate_requests=for_wrong, stable_requests=n - for_wrong)
    assert not right.rejects(0.001)
    assert wrong.rejects(0.001)


def test_right_splits_are_called_wrong_no_more_often_than_alpha() -> None:
    draws = np.random.default_rng(4)
    rejected = 0
    for _ in range(300):
        test = SplitTest(intended=0.05)
        for chosen in draws.binomial(20, 0.05, 60):
            test = test.observe(candidate_requests=int(chosen), stable_requests=20 - int(chosen))
        rejected += test.rejects(0.05)
    assert rejected / 300 <= 0.05


def test_at_100_percent_one_request_to_stable_is_decisive() -> None:
    test = SplitTest(intended=1.0).observe(candidate_requests=500, stable_requests=0)
    assert not test.rejects(0.001)
    assert test.observe(candidate_requests=0, stable_requests=1).rejects(0.001)


def test_huge_evidence_does_not_overflow() -> None:
    test = after(RateTest.start(1.5), [(1000, 0, 1000, 100_000)])
    assert math.isfinite(test.value)
    assert RateTest.model_validate_json(test.model_dump_json()) == test


def test_a_level_is_exceeded_by_larger_shares_and_by_chance_no_more_often_than_alpha() -> None:
    draws = np.random.default_rng(20261121)

    def largest(share: float) -> float:
        test, top = LevelTest(limit=0.1), 1.0
        for events in draws.binomial(50, share, size=40):
            test = test.observe(events=int(events), requests=50)
            top = max(top, test.tempered(1.0, math.inf))
        return top

    assert sum(largest(0.1) >= 20.0 for _ in range(100)) <= 5
    assert all(largest(0.2) >= 20.0 for _ in range(20))


def test_no_block_adds_more_than_it_may() -> None:
    test = RateTest.start(1.5, "odds", most_a_block=2.0)
    for _ in range(3):
        test = after(test, [(50, 5, 50, 50)])
    assert math.log(test.value) == pytest.approx(2.0)
    assert math.log(after(test.block_ends(), [(50, 5, 50, 50)]).value) == pytest.approx(4.0)
    level = LevelTest(limit=0.1).observe(events=50, requests=50)
    assert (
        math.log(level.tempered(1.0, 2.0)) == math.log(level.block_ends(2.0).tempered(1.0, 2.0)) == pytest.approx(2.0)
    )


def test_what_one_group_of_clients_shows_alone_is_no_evidence_and_what_all_show_is() -> None:
    def shown(*groups: str) -> float:
        test = RateTest.start(1.5)
        for _ in range(5):
            for group in "0123":
                events = 3 if group in groups else 0
                test = test.observe(
                    candidate_events=events, stable_events=0, candidate_requests=20, stable_requests=60, group=group
                )
            test = test.block_ends()
        return test.value

    assert shown("2") <= 1.0
    assert 20.0 < shown("0", "2") < shown("0", "1", "2", "3")
    alone = RateTest.start(1.5)
    assert after(alone, [(15, 0, 400, 1200)]).value > 20.0
