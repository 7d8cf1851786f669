"""What cannot be is ANOMALOUS, however good it looks."""

from __future__ import annotations

import math

import pytest
from load_windows import answered, records, window

from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.gate import judge_windows
from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.outcome import ServerUse
from llm_pipeline.loadtest.physics import PhysicalLimits
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
