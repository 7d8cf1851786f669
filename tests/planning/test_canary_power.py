from __future__ import annotations

import time

import numpy as np
import pytest

from llm_pipeline.canary.analysis import regressed_at
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.planning.canary_power import CanaryPower, canary_power
from llm_pipeline.planning.table import canary_lines
from llm_pipeline.statistics.eprocess import gained_by_odds

CAREFUL = CanaryPolicy(steps_percent=(1, 5, 25, 50, 100))


@pytest.mark.parametrize(("rate", "step"), [(20.0, 2), (200.0, 1), (200.0, 2)])
def test_the_rise_that_is_told_is_caught_nine_times_out_of_ten(rate: float, step: int) -> None:
    told = canary_power(CAREFUL, rate).steps[step].longest
    share, draws = CAREFUL.steps_percent[step] / 100.0, np.random.default_rng(7)
    assert told.error_ratio is not None
    caught = 0
    for _ in range(200):
        mine, theirs = (int(draws.poisson(rate * part * told.seconds / 90)) for part in (share, 1.0 - share))
        logs = np.zeros(6)
        for _ in range(90):
            events = (
                int(draws.binomial(mine, 0.002 * told.error_ratio)),
                int(draws.binomial(theirs, 0.002)),
            )
            logs += gained_by_odds((events[0], mine), (events[1], theirs), CAREFUL.error_ratio)
            if np.exp(logs).mean() >= regressed_at(CAREFUL):
                caught += 1
                break
    assert caught >= 160


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
    assert len(lines) == 2 + 2 * 4 + 1
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
