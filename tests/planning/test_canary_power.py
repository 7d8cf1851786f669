from __future__ import annotations

import time

import numpy as np
import pytest

from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.planning.canary_power import CanaryPower, canary_power
from llm_pipeline.planning.table import canary_lines
from llm_pipeline.statistics.eprocess import RateTest
from llm_pipeline.statistics.sequential_power import Arms, chance_within

CAREFUL = CanaryPolicy(steps_percent=(1, 5, 25, 50, 100))


def simulated(test: RateTest, limit: float, arms: Arms, requests: int, runs: int = 2000) -> float:
    """Share of runs whose e-value reached the limit by so many requests, of the test's own mixture."""
    random, step = np.random.default_rng(7), max(requests // 100, round(10 / arms.share))
    ratios = np.array([*test.alternatives, test.ratio])
    logs, reached = np.zeros((runs, len(ratios) - 1)), np.zeros(runs, dtype=bool)
    for _ in range(requests // step):
        candidate = random.binomial(step, arms.share, runs)[:, None]
        both = candidate * ratios + step - candidate
        with np.errstate(divide="ignore"):
            shares = np.log(np.maximum(candidate, 1e-9) * ratios / both), np.log((step - candidate) / both)
        mine = random.binomial(candidate, arms.candidate_event_share)
        theirs = random.binomial(step - candidate, arms.event_share)
        gained = mine * shares[0] + theirs * shares[1]
        logs += gained[:, :-1] - gained[:, -1:]
        reached |= np.exp(np.minimum(logs, 600.0)).mean(axis=1) >= limit
    return float(reached.mean())


@pytest.mark.parametrize(
    ("share", "event_share", "ratio", "requests"),
    [
        (0.01, 0.002, 50.0, 8000),
        (0.05, 0.002, 10.0, 6000),
        (0.25, 0.002, 3.0, 9000),
        (0.5, 0.1, 3.0, 1000),
        (0.25, 0.1, 1.8, 6000),
    ],
)
def test_the_chance_that_a_rise_is_caught_is_the_simulated_one(
    share: float, event_share: float, ratio: float, requests: int
):
    test, arms = RateTest.start(1.5), Arms(share, event_share, ratio)
    assert chance_within(requests, test, 60.0, arms) == pytest.approx(simulated(test, 60.0, arms, requests), abs=0.06)


def test_the_chance_that_common_events_are_caught_by_their_odds_is_the_simulated_one():
    random, arms, runs, step = np.random.default_rng(7), Arms(0.05, 0.1, 3.0), 60, 300
    caught = 0
    for _ in range(runs):
        test = RateTest.start(1.5, "odds")
        for _ in range(3000 // step):
            candidate = int(random.binomial(step, arms.share))
            test = test.observe(
                candidate_events=int(random.binomial(candidate, arms.candidate_event_share)),
                stable_events=int(random.binomial(step - candidate, arms.event_share)),
                candidate_requests=candidate,
                stable_requests=step - candidate,
            )
        caught += test.rejects(1.0 / 60.0)
    assert chance_within(3000, test, 60.0, arms) == pytest.approx(caught / runs, abs=0.1)


def test_rare_events_are_the_same_by_odds_and_by_rates():
    arms = Arms(0.05, 1e-4, 4.0)
    odds, rates = (chance_within(1e6, RateTest.start(1.5, law), 60.0, arms) for law in ("odds", "rates"))
    assert odds == pytest.approx(rates, abs=0.03)


def test_a_minute_at_one_percent_of_little_traffic_is_told_for_what_it_is():
    power = canary_power(CAREFUL, 2.0)
    first = power.steps[0]
    assert first.shortest.candidate_requests == pytest.approx(1.2)
    assert (first.shortest.error_ratio, first.shortest.slow_ratio) == (None, None)
    assert "no rise of errors at all in 1.2 candidate requests at 1 %" in power.warnings[1]
    assert power.warnings[0].startswith("canary: minimum_requests 50 may take 49 min 23 s at 1 %: beyond maximum_bake")


def test_more_time_a_larger_share_and_more_traffic_catch_smaller_rises():
    little, much = canary_power(CAREFUL, 20.0), canary_power(CAREFUL, 200.0)

    def caught(power: CanaryPower) -> list[float]:
        return [step.longest.error_ratio or 1e9 for step in power.steps]

    assert caught(little) == sorted(caught(little), reverse=True)
    assert all(more < less for more, less in zip(caught(much), caught(little), strict=True))
    assert all((step.shortest.error_ratio or 1e9) > (step.longest.error_ratio or 1e9) for step in little.steps)


def test_the_plan_says_what_is_seen_of_rare_kinds_and_beside_servers_that_waver():
    power = canary_power(CAREFUL, 200.0)
    ratios = [step.kind_error_ratio or 1e9 for step in power.steps]
    assert ratios == sorted(ratios, reverse=True)
    assert all(ratio > (step.longest.error_ratio or 1e9) for ratio, step in zip(ratios, power.steps, strict=True))
    assert power.wavering_ratio > 2.0 * CAREFUL.slow_ratio
    lines = "\n".join(canary_lines(power))
    assert "a kind of requests that is 2 % of the traffic" in lines
    assert "latencies are counted in blocks of 10 s" in lines
    assert f"only a rise of the odds by x {power.wavering_ratio:.2g} is told from chance" in lines


def test_what_is_proposed_needs_no_further_proposal():
    proposal = canary_power(CAREFUL, 2.0).proposal
    assert proposal is not None
    better = CAREFUL.model_copy(update=dict(proposal))
    assert canary_power(CanaryPolicy.model_validate(better.model_dump()), 2.0).proposal is None


def test_steps_that_never_see_enough_are_left_out_of_the_proposal():
    proposal = canary_power(CAREFUL, 0.5).proposal
    assert proposal is not None
    assert proposal.steps_percent == (5.0, 25.0, 50.0, 100.0)


def test_nothing_is_proposed_to_those_who_have_hardly_any_traffic():
    power = canary_power(CAREFUL, 0.01)
    assert power.proposal is None
    assert any("too little traffic" in line for line in power.warnings)


def test_the_table_has_two_bakes_for_every_step_but_the_last():
    lines = canary_lines(canary_power(CAREFUL, 20.0))
    assert len(lines) == 2 + 2 * 4 + 3
    assert canary_lines(canary_power(CanaryPolicy(steps_percent=(100.0,)), 20.0)) == []


def test_a_plan_has_the_time_for_it():
    started = time.process_time()
    for rate in (2.0, 20.0, 200.0, 2000.0):
        canary_power(CAREFUL, rate)
    assert time.process_time() - started < 20


def test_millions_of_wanted_requests_are_planned_at_once():
    started = time.process_time()
    canary_power(CanaryPolicy(minimum_requests=10_000_000), 20.0)
    assert time.process_time() - started < 20
