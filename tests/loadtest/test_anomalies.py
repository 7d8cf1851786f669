"""What cannot be is ANOMALOUS, however good it looks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from load_windows import Row, answered, records, window

from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.gate import judge_windows
from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.outcome import ServerUse
from llm_pipeline.loadtest.physics import FloorTimes, PhysicalLimits
from llm_pipeline.loadtest.records import Fault

POLICY = LoadTestPolicy(service_level=ServiceLevel(first_token_milliseconds=500, end_to_end_milliseconds=2000))
TOLERANT = POLICY.model_copy(update={"maximum_error_fraction": 0.01})
PHYSICS = PhysicalLimits(
    accelerator="1 x H100",
    first_token_seconds=0.01,
    token_seconds=0.005,
    prompt_token_seconds=1e-5,
    tokens_per_second=2000.0,
)

IMPOSSIBLE = {
    "an answer that took no time": {"total_seconds": 0.0, "first_token_seconds": 0.0},
    "a token before its request": {"lag_seconds": 0.03},
    "a token after its end": {"first_token_seconds": 0.2},
    "an answer without tokens that counts as good": {"output_tokens": 0},
    "more tokens than asked for that count as good": {"output_tokens": 9},
    "a latency that is not a number": {"total_seconds": math.nan},
    "a latency without end": {"total_seconds": math.inf},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_single_result_that_cannot_be_is_anomalous(name: str):
    judgement = judge_windows([window(300, 1, **IMPOSSIBLE[name])], POLICY)
    assert judgement.verdict is Verdict.ANOMALOUS
    assert "impossible results" in judgement.summary


def test_answers_of_another_length_than_asked_for_are_anomalous_beyond_the_tolerated_share():
    short, long = {"fault": Fault.SHORT, "output_tokens": 4}, {"fault": Fault.LONG, "output_tokens": 9}
    for other in (short, long):
        assert judge_windows([window(300, 1, **other)], POLICY).verdict is Verdict.ANOMALOUS
    assert judge_windows(4 * [window(900, 1, **short)], TOLERANT).verdict is Verdict.GO
    assert judge_windows(4 * [window(90, 1, **short)], TOLERANT).verdict is Verdict.INCONCLUSIVE, "one is chance"
    assert judge_windows([window(300, 12, **short)], TOLERANT).verdict is Verdict.ANOMALOUS


def test_what_the_hardware_allows_passes():
    """Eight tokens in 100 ms, where 10 + 7 x 5 are the least."""
    judgement = judge_windows(4 * [window(300)], POLICY, physics=PHYSICS)
    assert judgement.verdict is Verdict.GO
    fact = next(fact for fact in judgement.evidence if "least time" in fact.name)
    assert fact.measured == pytest.approx(0.019 / 0.01)  # of its first token, which is nearer to its bound
    assert "H100" in fact.name


FASTER = {
    "a whole answer": {"output_tokens": 24, "asked_tokens": 24},
    "a first token": {"first_token_seconds": 0.006},
    "a long prompt": {"input_tokens": 4000},
}


@pytest.mark.parametrize("name", FASTER)
def test_one_answer_faster_than_the_hardware_allows_is_anomalous(name: str):
    judgement = judge_windows([window(300, 1, **FASTER[name])], POLICY, physics=PHYSICS)
    assert judgement.verdict is Verdict.ANOMALOUS
    assert "1 answers were faster" in judgement.summary


def test_more_tokens_a_second_than_the_hardware_computes_are_anomalous():
    crowd = records(answered(k, arrives_at=k / 400) for k in range(400))  # 8 tokens each, in 1.1 s
    assert judge_windows([crowd], POLICY, physics=PHYSICS).verdict is Verdict.ANOMALOUS
    twice = PHYSICS.model_copy(update={"tokens_per_second": 4000.0})
    assert judge_windows(4 * [crowd], POLICY, physics=twice).verdict is Verdict.GO


def alone(random: np.random.Generator, requests: int = 40, slowed: float = 1.0) -> list[Row]:
    """10 ms, 0.05 ms for each token of the prompt and 2 ms for each of the answer; some are disturbed."""
    rows = []
    for number in range(requests):
        prompt, output = int(random.integers(16, 200)), int(random.integers(4, 33))
        computed = slowed * (0.01 + 5e-5 * prompt + 0.002 * output)
        total = computed * (1.0 + random.exponential(0.1)) + 0.001
        times = dict.fromkeys(("last_token_seconds", "total_seconds"), total) | {"first_token_seconds": 0.006}
        rows.append(answered(number, input_tokens=prompt, output_tokens=output, asked_tokens=output, **times))
    return rows


def test_the_floor_is_what_an_answer_took_alone_and_lengths_that_were_not_seen_are_not_extrapolated():
    floor = FloorTimes.of(records(alone(np.random.default_rng(1))))
    told = floor.seconds(records([answered(0, input_tokens=100, output_tokens=20, asked_tokens=20)]))[0]
    assert told == pytest.approx(0.01 + 0.005 + 0.04, rel=0.1)
    longest, longer, shortest, shorter = floor.seconds(
        records(answered(k, input_tokens=50, output_tokens=n) for k, n in enumerate((32, 4000, 4, 1)))
    )
    assert longer == longest
    assert shorter <= shortest / 4 * 1.001
    assert not FloorTimes.of(records(alone(np.random.default_rng(1), 9))).known, "too few answers are no floor"


def test_a_server_that_is_as_fast_under_load_as_alone_passes_on_a_host_that_is_twice_as_fast_now():
    random = np.random.default_rng(2)
    floor = FloorTimes.of(records(alone(random)))
    for slowed in (1.0, 0.5, 5.0):
        given = records(alone(random, 400, slowed))
        assert judge_windows(4 * [given], POLICY, floor=floor).verdict is Verdict.GO, slowed


def test_a_server_that_keeps_answers_is_anomalous():
    random = np.random.default_rng(2)
    floor, rows = FloorTimes.of(records(alone(random))), alone(random, 400)
    kept = [
        row | {"first_token_seconds": 0.003, "last_token_seconds": 0.0031, "total_seconds": 0.0032}
        for row in rows[::20]
    ]
    mixed = records([row for row in rows if row["number"] % 20] + kept)
    judgement = judge_windows([mixed], POLICY, floor=floor)
    assert judgement.verdict is Verdict.ANOMALOUS
    assert "20 answers came in less than a third" in judgement.summary


def test_tokens_that_the_server_never_generated_are_anomalous():
    given = window(300)  # 2,400 tokens

    def judged(use: ServerUse) -> Judgement:
        return judge_windows(4 * [given], POLICY, sent=[MeasuredWindow(given, 15.0, use)])

    judgement = judged(ServerUse(output_tokens=1900, samples=5))
    assert judgement.verdict is Verdict.ANOMALOUS
    assert "2400 output tokens, its metrics counted 1900" in judgement.summary
    for agreeing in (ServerUse(output_tokens=2390, samples=5), ServerUse(output_tokens=2600, samples=5), ServerUse()):
        assert judged(agreeing).verdict is Verdict.GO


def test_an_anomaly_is_told_before_a_missed_service_level():
    given = window(100, 200, first_token_seconds=0.006, total_seconds=3.0)
    judgement = judge_windows([given], POLICY.model_copy(update={"attainment": 0.99}), physics=PHYSICS)
    assert judgement.verdict is Verdict.ANOMALOUS
    assert judgement.evidence[0].verdict is Verdict.ANOMALOUS
