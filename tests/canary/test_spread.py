"""What is learned of how one server wavers, and that equal servers which waver are not told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llm_pipeline.canary.analysis import AnalysisState, begin, begin_step, observe
from llm_pipeline.canary.arm_counts import ArmCounts, ArmEvents, MetricCounts, Window
from llm_pipeline.canary.evidence import regression_limit
from llm_pipeline.canary.metric_events import Limit, MetricLimits
from llm_pipeline.canary.slow_limits import Thresholds
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.spread import FEWEST_SEGMENTS, Pace, Spread, independence

POLICY = CanaryPolicy()
UNITS, SHARE = 400, 0.5


def wavering(random: np.random.Generator, blocks: int, *, seconds: float, spread: float) -> np.ndarray:
    """Shares of slow requests of one server: log odds of an AR(1) process, in blocks of 10 s."""
    kept = math.exp(-10.0 / seconds) if spread else 0.0
    odds = [random.normal() * spread]
    for _ in range(blocks - 1):
        odds.append(kept * odds[-1] + random.normal() * spread * math.sqrt(1.0 - kept**2))
    return 1.0 / (1.0 + np.exp(-np.array(odds)))


def learned(shares: np.ndarray, random: np.random.Generator) -> Spread:
    spread = Spread.start(1)
    for share in shares:
        spread = spread.observe(UNITS, (int(random.binomial(UNITS, share)),))
    return spread


def test_a_server_that_does_not_waver_leaves_nearly_all_evidence() -> None:
    random = np.random.default_rng(3)
    spread = learned(np.full(360, SHARE), random)
    assert all(spread.variance(0, blocks, cautious=True) < 0.001 for blocks in (1, 4, 16, 45, 1000))


@pytest.mark.parametrize(("blocks", "true"), [(1, 0.16), (8, 0.145), (32, 0.108)])
def test_the_variance_that_is_learned_is_that_of_the_scale(blocks: int, true: float) -> None:
    random = np.random.default_rng(3)
    found = [
        learned(wavering(random, 720, seconds=240.0, spread=0.4), random).variance(0, blocks, cautious=False)
        for _ in range(6)
    ]
    assert np.mean(found) == pytest.approx(true, rel=0.35)


def test_a_short_history_makes_cautious() -> None:
    random = np.random.default_rng(3)
    spreads = [learned(wavering(random, blocks, seconds=30.0, spread=0.4), random) for blocks in (9, 360)]
    short, long = (found.variance(0, 1, cautious=True) / found.variance(0, 1, cautious=False) for found in spreads)
    assert short > 1.5
    assert 1.0 < long < 1.1


def test_nothing_is_assumed_to_shrink_beyond_the_longest_scale_that_was_seen() -> None:
    spread = learned(wavering(np.random.default_rng(3), 80, seconds=600.0, spread=0.4), np.random.default_rng(4))
    assert max(scale.blocks for scale in spread.scales if scale.segments >= FEWEST_SEGMENTS) == 8
    assert spread.variance(0, 8.0, cautious=True) == spread.variance(0, 5000.0, cautious=True) > 0.0


def test_blocks_that_cannot_be_told_apart_say_nothing_of_shorter_ones() -> None:
    spread = Spread.start(1).observe(UNITS, (7,), blocks=6)
    assert [(scale.segments, scale.open_units) for scale in spread.scales[:5]] == [
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 400),
        (0, 400),
    ]


def test_evidence_of_one_moment_is_a_short_comparison_and_evidence_of_many_blocks_a_long_one() -> None:
    even = uneven = Pace()
    for number in range(10):
        even = even.observe(100, 100, (1,), 1.0 + number).closed(1, 1.0)
        uneven = uneven.observe(1000 if number == 9 else 1, 1000 if number == 9 else 1, (1,), 1.0 + number).closed(
            1, 1.0
        )
    assert even.blocks == pytest.approx(10.0)
    assert uneven.blocks == pytest.approx(1.0, abs=0.05)


def test_evidence_is_bounded_by_how_servers_waver_however_many_requests_there_are() -> None:
    bounded = [information * independence(information, 0.1) for information in (1e2, 1e4, 1e6)]
    assert bounded == pytest.approx([4.76, 5.0, 5.0], rel=0.01)


def rolled_back(
    random: np.random.Generator, *, seconds: float, spread: float, factor: float = 1.0, allow: bool = True
) -> bool:
    """Twenty minutes of a candidate beside stable, after half an hour of stable alone."""
    metric = MetricLimits(name="slow end to end", limits=(Limit(value=100.0, label="p50"),))
    stable = wavering(random, 300, seconds=seconds, spread=spread)
    candidate = wavering(random, 120, seconds=seconds, spread=spread)
    candidate = factor * candidate / (1.0 - candidate + factor * candidate)
    history = {metric.name: learned(stable[:180], random)} if allow else {}
    block_seconds = 10.0 if allow else 1e9
    limits = Thresholds(
        requests=100, metrics=(MetricLimits(name="errors"), metric), learned=history, block_seconds=block_seconds
    )  # type: ignore[arg-type]
    state = begin_step(begin(limits, POLICY), 0.25)
    if not allow:
        state = without_blocks(state)
    for number, (mine, theirs) in enumerate(zip(candidate, stable[180:], strict=True)):
        state = observe(state, look(int(random.binomial(50, mine)), int(random.binomial(150, theirs)), number))
    return state.metrics[1].largest >= regression_limit(state.metrics[1], POLICY)


def without_blocks(state: AnalysisState) -> AnalysisState:
    errors, metric = state.metrics
    limits = tuple(
        limit.model_copy(update={"regressed": limit.regressed.model_copy(update={"most_a_block": None})})
        for limit in metric.limits
    )
    return state.model_copy(update={"metrics": (errors, metric.model_copy(update={"limits": limits}))})


def look(mine: int, theirs: int, number: int) -> Window:
    counts = MetricCounts(
        name="slow end to end",
        stratum="0",
        candidate=ArmEvents(units=50, events=(mine,)),
        stable=ArmEvents(units=150, events=(theirs,)),
    )
    return Window(
        candidate=ArmCounts(requests=50),
        stable=ArmCounts(requests=150),
        trailing_faults=0,
        all_faults=False,
        candidate_units=50,
        stable_units=150,
        counts=(counts,),
        began=1.0 + 10.0 * number,
        until=1.0 + 10.0 * (number + 1),
    )


@pytest.mark.parametrize("seconds", [30.0, 600.0])
def test_equal_servers_that_waver_by_themselves_are_not_told_apart(seconds: float) -> None:
    random = np.random.default_rng(11)
    assert sum(rolled_back(random, seconds=seconds, spread=0.6) for _ in range(8)) <= 1


def test_without_the_allowance_they_are() -> None:
    random = np.random.default_rng(11)
    assert sum(rolled_back(random, seconds=600.0, spread=0.6, allow=False) for _ in range(12)) >= 3


def test_a_slower_candidate_is_caught_where_servers_do_not_waver() -> None:
    random = np.random.default_rng(11)
    assert all(rolled_back(random, seconds=600.0, spread=0.0, factor=2.3) for _ in range(3))
