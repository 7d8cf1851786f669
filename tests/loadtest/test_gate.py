import pytest

from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.gate import judge_load_test
from llm_pipeline.loadtest.records import RequestRecord
from llm_pipeline.verdict import Verdict

POLICY = LoadTestPolicy(
    service_level=ServiceLevel(first_token_milliseconds=100, end_to_end_milliseconds=300),
    attainment=0.95,
    confidence=0.95,
    maximum_error_fraction=0.0,
    minimum_requests=50,
    maximum_client_lag_milliseconds=50,
)


def record(number: int, **changes) -> RequestRecord:
    good = {
        "number": number,
        "arrives_at": number / 20,
        "lag_seconds": 0.001,
        "first_token_seconds": 0.02,
        "total_seconds": 0.1,
        "asked_tokens": 8,
        "output_tokens": 8,
        "status": 200,
    }
    return RequestRecord(**{**good, **changes})


def records(good: int, bad: int = 0, **changes) -> list[RequestRecord]:
    return [record(number) for number in range(good)] + [record(good + k, **changes) for k in range(bad)]


CASES = {
    "all good, just enough for the claim": (records(59), Verdict.GO),
    "all good, one too few for 95 % at 95 %": (records(58), Verdict.INCONCLUSIVE),
    "two slow of 130": (records(128, 2, first_token_seconds=0.2, total_seconds=0.25), Verdict.GO),
    "five slow first tokens of 100 decide nothing": (
        records(95, 5, first_token_seconds=0.2, total_seconds=0.25),
        Verdict.INCONCLUSIVE,
    ),
    "eleven slow first tokens of 100": (records(89, 11, first_token_seconds=0.2, total_seconds=0.25), Verdict.NO_GO),
    "fast first tokens, slow ends": (records(80, 20, total_seconds=0.4), Verdict.NO_GO),
    "each limit is missed by others, together too often": (
        records(88)
        + [record(88 + k, first_token_seconds=0.2, total_seconds=0.25) for k in range(6)]
        + [record(94 + k, total_seconds=0.4) for k in range(6)],
        Verdict.NO_GO,
    ),
    "one error where none is allowed": (records(400, 1, error="HTTP 500: x", status=500), Verdict.NO_GO),
    "no request at all": ([], Verdict.INCONCLUSIVE),
    "a single request": (records(1), Verdict.INCONCLUSIVE),
    "too few, and all too slow": (records(0, 30, first_token_seconds=2.0, total_seconds=3.0), Verdict.INCONCLUSIVE),
    "nothing answered": (records(0, 100, error="refused", first_token_seconds=None, output_tokens=0), Verdict.NO_GO),
    "the client was late": (
        [record(k, lag_seconds=0.06, first_token_seconds=0.08) for k in range(200)],
        Verdict.INCONCLUSIVE,
    ),
    "the client was late and everything looks slow": (
        [record(k, lag_seconds=0.5, first_token_seconds=0.6, total_seconds=0.9) for k in range(200)],
        Verdict.INCONCLUSIVE,
    ),
    "the client fell behind its rate": (
        [record(k, lag_seconds=k * 0.0012, first_token_seconds=0.9, total_seconds=0.95) for k in range(200)],
        Verdict.INCONCLUSIVE,
    ),
    "more tokens than asked for": (records(200, 1, output_tokens=9), Verdict.ANOMALOUS),
    "more tokens than asked for, flagged as an error": (
        records(200, 1, output_tokens=9, error="9 tokens came, 8 were asked for"),
        Verdict.ANOMALOUS,
    ),
    "an answer that took no time": (records(200, 1, total_seconds=0.0), Verdict.ANOMALOUS),
    "a token before its request": (records(200, 1, lag_seconds=0.03), Verdict.ANOMALOUS),
    "a token after its end": (records(200, 1, first_token_seconds=0.2), Verdict.ANOMALOUS),
    "an answer without tokens that counts as good": (records(200, 1, output_tokens=0), Verdict.ANOMALOUS),
    "a latency that is no number": (records(200, 1, total_seconds=float("nan")), Verdict.ANOMALOUS),
}


@pytest.mark.parametrize("name", CASES)
def test_verdict_of(name: str):
    given, expected = CASES[name]
    assert judge_load_test(given, POLICY).verdict is expected, judge_load_test(given, POLICY)


def test_a_run_that_the_client_spoiled_says_so_first():
    slow_client = [record(k, lag_seconds=0.5, first_token_seconds=0.6, total_seconds=0.9) for k in range(200)]
    assert "could not keep up" in judge_load_test(slow_client, POLICY).summary


def test_allowed_errors_still_miss_the_service_level():
    lenient = POLICY.model_copy(update={"maximum_error_fraction": 0.2})
    failing = records(94, 6, error="HTTP 503: queue full", status=503)
    judgement = judge_load_test(failing, lenient)
    by_name = {fact.name: fact for fact in judgement.evidence}
    assert by_name["failed requests"].verdict is Verdict.GO
    assert by_name["service level met"].measured == pytest.approx(0.94)
    assert judgement.verdict is Verdict.INCONCLUSIVE


def test_the_bounds_are_the_exact_binomial_ones():
    fact = next(f for f in judge_load_test(records(100), POLICY).evidence if f.name == "service level met")
    assert fact.lower == pytest.approx(0.05 ** (1 / 100))  # all of n good: the lower bound is alpha^(1/n)
    assert fact.upper == 1.0


@pytest.mark.parametrize("missed", range(0, 30, 3))
def test_go_and_no_go_never_both_hold(missed: int):
    given = records(200 - missed, missed, first_token_seconds=0.2, total_seconds=0.25)
    fact = next(f for f in judge_load_test(given, POLICY).evidence if f.name == "service level met")
    assert (fact.lower >= 0.95) + (fact.upper < 0.95) <= 1
    expected = Verdict.GO if fact.lower >= 0.95 else Verdict.NO_GO if fact.upper < 0.95 else Verdict.INCONCLUSIVE
    assert fact.verdict is expected
