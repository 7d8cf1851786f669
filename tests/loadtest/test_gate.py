from __future__ import annotations

import math
import re

import numpy as np
import pytest
from load_windows import answered, bulk, window

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.gate import judge_windows, probe_verdict, void_reason
from llm_pipeline.loadtest.records import Fault, Records

POLICY = LoadTestPolicy(
    service_level=ServiceLevel(first_token_milliseconds=100, end_to_end_milliseconds=500),
    attainment=0.95,
    confidence=0.95,
    minimum_requests=50,
)
EACH = POLICY.model_copy(
    update={
        "service_level": ServiceLevel(
            first_token_milliseconds=100, time_per_output_token_milliseconds=20, together=False
        )
    }
)
SLOW = {"first_token_seconds": 0.2, "last_token_seconds": 0.24, "total_seconds": 0.25}
FAILED = {"fault": Fault.SHED, "status": 503, "first_token_seconds": math.nan, "output_tokens": 0}


def fact(judgement: Judgement, name: str) -> Evidence:
    return next(found for found in judgement.evidence if found.name == name)


CASES = {
    "all good, just enough for the claim": (window(59), Verdict.GO),
    "all good, one too few for 95 % at 95 %": (window(58), Verdict.INCONCLUSIVE),
    "three slow of 300": (window(297, 3, **SLOW), Verdict.GO),
    "five slow of 100 decide nothing": (window(95, 5, **SLOW), Verdict.INCONCLUSIVE),
    "thirty slow of 200": (window(170, 30, **SLOW), Verdict.NO_GO),
    "fast first tokens, slow ends": (window(160, 40, total_seconds=0.6), Verdict.NO_GO),
    "one error where none is allowed": (window(400, 1, **FAILED), Verdict.NO_GO),
    "no request at all": (window(0), Verdict.INCONCLUSIVE),
    "a single request": (window(1), Verdict.INCONCLUSIVE),
    "too few, and all too slow": (window(0, 30, **SLOW), Verdict.INCONCLUSIVE),
    "nothing answered": (window(0, 100, **FAILED), Verdict.NO_GO),
    "a streamed answer without a time to its first token": (
        window(200, 1, first_token_seconds=math.nan),
        Verdict.ANOMALOUS,
    ),
    "users who left are no requests": (window(58, 40, fault=Fault.LEFT, total_seconds=9.0), Verdict.INCONCLUSIVE),
    "users who left spoil nothing": (window(60, 40, fault=Fault.LEFT, total_seconds=9.0), Verdict.GO),
    "the client was late": (
        Records.of(answered(k, lag_seconds=0.06, first_token_seconds=0.08) for k in range(200)),
        Verdict.INCONCLUSIVE,
    ),
    "the client was late and everything looks slow": (
        Records.of(answered(k, lag_seconds=0.5, first_token_seconds=0.6, total_seconds=0.9) for k in range(200)),
        Verdict.INCONCLUSIVE,
    ),
    "the client was late and requests failed": (
        Records.of(answered(k, **{**FAILED, "lag_seconds": 0.5, "total_seconds": 0.9}) for k in range(200)),
        Verdict.INCONCLUSIVE,
    ),
    "the client fell behind its rate": (
        Records.of(
            answered(k, lag_seconds=k * 0.0012, first_token_seconds=0.9, total_seconds=0.95) for k in range(200)
        ),
        Verdict.INCONCLUSIVE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_verdict_of(name: str):
    given, expected = CASES[name]
    judgement = judge_windows([given], POLICY)
    assert judgement.verdict is expected, judgement


def test_no_window_at_all_never_passes():
    assert judge_windows([], POLICY).verdict is Verdict.INCONCLUSIVE
    assert probe_verdict(window(0), POLICY) is Verdict.INCONCLUSIVE


def test_one_void_window_of_several_keeps_all_from_deciding_and_says_so_first():
    late = Records.of(answered(k, lag_seconds=0.5, first_token_seconds=0.6, total_seconds=0.9) for k in range(200))
    judgement = judge_windows([window(200), late, window(200)], POLICY)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "could not keep up" in judgement.summary
    assert "could not keep up" in void_reason(late, POLICY)
    assert void_reason(window(200), POLICY) == ""


def test_windows_are_judged_together():
    half = window(30)
    assert judge_windows([half], POLICY).verdict is Verdict.INCONCLUSIVE
    assert judge_windows([half, half], POLICY).verdict is Verdict.GO


def test_looks_share_the_error():
    assert judge_windows([window(79)], POLICY, look=1, looks=3).verdict is Verdict.INCONCLUSIVE
    assert judge_windows([window(80)], POLICY, look=1, looks=3).verdict is Verdict.GO


def test_an_undecided_look_says_which_one_it_was_and_what_is_needed():
    summary = judge_windows([window(40)], POLICY.model_copy(update={"minimum_requests": 1}), look=2, looks=3).summary
    assert "at look 2 of 3" in summary
    assert "80 independent requests are needed" in summary


def test_requests_of_one_long_stall_count_as_few():
    """The same 40 late requests of 2,000: strewn about they are tolerable, in one stall they show next to nothing."""
    strewn = judge_windows([window(1960, 40, **SLOW)], POLICY)
    stalled = Records.of(answered(k, **(SLOW if 700 <= k < 740 else {})) for k in range(2000))
    assert strewn.verdict is Verdict.GO
    assert judge_windows([stalled], POLICY).verdict is Verdict.INCONCLUSIVE
    assert "independent ones" in fact(judge_windows([stalled], POLICY), "service level met").detail


WAITS = np.where(np.arange(1200) % 400 < 100, 0.05, 0.01)
"""A queue that fills for 100 requests of 400, far below the limit."""


def test_a_window_that_is_not_judged_shows_how_requests_wait_for_one_another():
    """Windows in which no queue happened to fill look independent."""
    calm = [bulk(np.random.default_rng(seed).uniform(0.01, 0.02, 240)) for seed in range(5)]
    assert judge_windows(calm, POLICY).verdict is Verdict.GO
    assert judge_windows(calm, POLICY, before=calm[:2]).verdict is Verdict.GO
    assert judge_windows(calm, POLICY, before=[bulk(WAITS)]).verdict is Verdict.INCONCLUSIVE


def test_a_short_window_that_is_not_judged_counts_by_what_it_shows():
    """`make demo`: 700 requests, all of them ten times as fast as their limit, and 114 of the target window."""
    times = [np.random.default_rng(seed).lognormal(math.log(0.01), 0.3, 117) for seed in range(7)]
    calm, before = [bulk(window) for window in times[:6]], bulk(times[6][:114])
    assert judge_windows(calm, POLICY, before=[before]).verdict is Verdict.GO
    assert judge_windows(calm, POLICY, before=[bulk(WAITS[:800])]).verdict is Verdict.INCONCLUSIVE


def test_a_test_too_short_for_its_queue_says_how_long_it_has_to_be():
    calm = [bulk(np.random.default_rng(seed).uniform(0.01, 0.02, 240)) for seed in range(5)]
    summary = judge_windows(calm, POLICY, before=[bulk(WAITS)]).summary
    needed = int(re.search(r"even with none late, (\d+) are needed", summary)[1])
    assert needed > 1200
    longer = [bulk(np.resize(WAITS, needed))] * 2
    assert judge_windows(longer, POLICY, before=[bulk(WAITS)]).verdict is Verdict.GO


def test_a_window_that_is_not_judged_is_no_evidence_of_being_fast_or_slow():
    slow, fast = [bulk(np.full(400, 0.4))], [bulk(np.full(400, 0.02))]
    assert judge_windows(fast, POLICY, before=slow).verdict is Verdict.GO
    assert judge_windows(slow, POLICY, before=fast).verdict is Verdict.NO_GO


def test_a_window_of_the_same_rate_that_is_not_judged_shows_how_windows_differ():
    judged, slower = ([bulk(factor * np.full(400, 0.08))] for factor in (1.0, 1.5))
    assert judge_windows(5 * judged, POLICY, before=slower).verdict is Verdict.INCONCLUSIVE
    assert judge_windows(5 * judged, POLICY, before=slower, same_rate=False).verdict is Verdict.GO


def test_windows_that_differ_are_alike_within():
    fine, bad = window(300), window(270, 30, **SLOW)
    alike = judge_windows([window(290, 10, **SLOW)] * 3, POLICY)
    unlike = judge_windows([fine, fine, bad], POLICY)
    assert fact(alike, "service level met").lower > fact(unlike, "service level met").lower


def test_each_limit_is_told_beside_all_together():
    each_missed_by_others = Records.of(
        answered(k, **(SLOW if k % 20 == 0 else {"total_seconds": 0.6} if k % 20 == 10 else {})) for k in range(2000)
    )
    judgement = judge_windows([each_missed_by_others], POLICY)
    assert judgement.verdict is Verdict.NO_GO
    assert fact(judgement, "service level met").measured == pytest.approx(0.90)
    assert fact(judgement, "first token in time").measured == pytest.approx(0.95)
    assert fact(judgement, "whole answer in time").measured == pytest.approx(0.95)


def test_limits_for_themselves_are_attained_each():
    """MLPerf's rule: 4 % miss one limit, other 4 % the other, and each is attained by 95 %."""
    policy = EACH.model_copy(update={"attainment": 0.94})
    slow_tokens = {"last_token_seconds": 0.3, "total_seconds": 0.31}
    given = Records.of(
        answered(k, **(SLOW if k % 25 == 0 else slow_tokens if k % 25 == 12 else {})) for k in range(3000)
    )
    together = policy.model_copy(update={"service_level": policy.service_level.model_copy(update={"together": True})})
    assert judge_windows([given], policy).verdict is Verdict.GO
    assert judge_windows([given], together).verdict is Verdict.NO_GO
    assert probe_verdict(given, policy) is Verdict.GO
    assert probe_verdict(given, together) is Verdict.NO_GO


def test_a_limit_that_no_request_could_be_measured_on_never_passes():
    one_token = Records.of(answered(k, output_tokens=1, asked_tokens=1) for k in range(200))
    judgement = judge_windows([one_token], EACH)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "No request could be measured" in fact(judgement, "tokens in time").detail


def test_allowed_errors_still_miss_the_service_level():
    lenient = POLICY.model_copy(update={"maximum_error_fraction": 0.2})
    judgement = judge_windows([window(94, 6, **FAILED)], lenient)
    assert fact(judgement, "failed requests").verdict is Verdict.GO
    assert fact(judgement, "service level met").measured == pytest.approx(0.94)
    assert judgement.verdict is Verdict.INCONCLUSIVE


def test_errors_are_told_by_kind_and_the_first_one_is_quoted():
    rows = [answered(k) for k in range(300)]
    rows[5] = answered(5, **{**FAILED, "fault": Fault.CUT})
    rows[9:12] = [answered(k, **FAILED) for k in range(9, 12)]
    given = Records.of(rows, details={Fault.SHED: "HTTP 503: queue is full", Fault.CUT: "no last chunk"})
    judgement = judge_windows([given], POLICY)
    assert fact(judgement, "failed requests").detail == ("3 shed, 1 stream cut; the first: HTTP 503: queue is full")
    assert "queue is full" in judgement.summary


def test_more_errors_than_tolerated_decide_only_when_they_are_shown():
    tolerant = POLICY.model_copy(update={"maximum_error_fraction": 0.01})
    assert judge_windows([window(197, 3, **FAILED)], tolerant).verdict is Verdict.INCONCLUSIVE
    assert judge_windows([window(470, 30, **FAILED)], tolerant).verdict is Verdict.NO_GO


def test_a_tolerated_share_of_failures_is_shown_and_not_taken_from_the_point_estimate():
    """Two failures of 2,400 are fewer than 0.1 %, and come of a server that fails 0.2 % in one session of seven."""
    tolerant = POLICY.model_copy(update={"maximum_error_fraction": 0.001})
    few = judge_windows([window(2398, 2, **FAILED)], tolerant)
    assert few.verdict is Verdict.INCONCLUSIVE
    assert "6294 independent requests" in fact(few, "failed requests").detail
    assert judge_windows([window(2994)], tolerant).verdict is Verdict.INCONCLUSIVE
    assert judge_windows([window(2995)], tolerant).verdict is Verdict.GO
    assert judge_windows([window(6598, 2, **FAILED)], tolerant).verdict is Verdict.GO


def test_where_no_failure_is_allowed_a_go_needs_no_more_than_to_have_seen_none():
    assert fact(judge_windows([window(100)], POLICY), "failed requests").verdict is Verdict.GO
    assert fact(judge_windows([window(9999, 1, **FAILED)], POLICY), "failed requests").verdict is Verdict.NO_GO


def test_a_probe_is_not_ended_by_a_failure_that_the_tolerated_share_explains():
    tolerant = POLICY.model_copy(update={"maximum_error_fraction": 0.001})
    assert probe_verdict(window(299, 1, **FAILED), tolerant) is Verdict.GO
    assert probe_verdict(window(295, 5, **FAILED), tolerant) is Verdict.NO_GO
    assert probe_verdict(window(299, 1, **FAILED), POLICY) is Verdict.NO_GO, "none is allowed"


def test_windows_that_differ_seldom_pass_at_the_limit_itself():
    """Each of three windows is slower or faster than the others by 30 %, and the limit is the p95 of all such."""
    draws, runs, limit = np.random.default_rng(3), 120, 0.1
    unit = limit / math.exp(1.645 * math.hypot(0.5, 0.3))
    passed = 0
    for _ in range(runs):
        factors = unit * draws.lognormal(0.0, 0.3, 3)
        windows = [bulk(factor * draws.lognormal(0.0, 0.5, 600) - 0.001) for factor in factors]
        passed += judge_windows(windows, POLICY).verdict is Verdict.GO
    assert passed <= 12, "5 % of 120 are 6, and a fair gate has more than 12 in one run of a hundred"


def test_windows_that_differ_far_below_the_limit_decide_as_soon_as_others():
    """Their difference is charged in latency, and not once more as requests that are alike."""
    draws = np.random.default_rng(5)
    factors = (0.7, 0.85, 1.0, 1.15, 1.35, 1.0)
    windows = [bulk(0.008 * factor * draws.lognormal(0.0, 0.5, 40)) for factor in factors]
    assert judge_windows(windows, POLICY, look=1, looks=9).verdict is Verdict.GO


def test_windows_that_differ_say_by_how_much_others_may():
    windows = [bulk(np.full(400, seconds)) for seconds in (0.05, 0.06, 0.075)]
    level = fact(judge_windows(windows, POLICY), "service level met")
    assert level.measured == 1.0
    assert level.verdict is Verdict.INCONCLUSIVE
    assert "further ones may be" in level.detail
    assert fact(judge_windows(windows[:1] * 3, POLICY), "service level met").verdict is Verdict.GO


def test_the_bounds_are_the_exact_binomial_ones():
    level = fact(judge_windows([window(100)], POLICY), "service level met")
    assert level.lower == pytest.approx(0.05 ** (1 / 100))  # all of n good: the lower bound is alpha^(1/n)
    assert level.upper == 1.0


@pytest.mark.parametrize("missed", range(0, 60, 6))
def test_go_and_no_go_never_both_hold(missed: int):
    level = fact(judge_windows([window(400 - missed, missed, **SLOW)], POLICY), "service level met")
    expected = Verdict.GO if level.lower >= 0.95 else Verdict.NO_GO if level.upper < 0.95 else Verdict.INCONCLUSIVE
    assert not (level.lower >= 0.95 and level.upper < 0.95)
    assert level.verdict is expected


def test_a_probe_takes_the_point_estimate():
    assert probe_verdict(window(95, 5, **SLOW), POLICY) is Verdict.GO
    assert probe_verdict(window(94, 6, **SLOW), POLICY) is Verdict.NO_GO
    assert probe_verdict(window(99, 1, **FAILED), POLICY) is Verdict.NO_GO
    late = Records.of(answered(k, lag_seconds=0.5, first_token_seconds=0.6, total_seconds=0.9) for k in range(200))
    assert probe_verdict(late, POLICY) is Verdict.INCONCLUSIVE


def test_many_requests_are_judged_as_few_are():
    times = np.random.default_rng(3).exponential(0.02, 100_000)
    assert judge_windows([bulk(times)], POLICY).verdict is Verdict.GO
