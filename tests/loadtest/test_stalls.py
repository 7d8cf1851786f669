"""Stalls that come so rarely that a load test may not see one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from load_windows import RATE, answered, bulk, window

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.verdict import Verdict, worst
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel, Soak
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.gate import judge_windows
from llm_pipeline.loadtest.outcome import ServerUse, WindowSummary
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.sample_size import (
    excluded_period,
    require_enough,
    sample_size,
    seconds_to_exclude,
    watched_seconds,
)
from llm_pipeline.loadtest.session import judge_soak

POLICY = LoadTestPolicy(
    service_level=ServiceLevel(first_token_milliseconds=100), attainment=0.95, confidence=0.95, minimum_requests=50,
    search=None,
)  # fmt: skip
LATE = {"first_token_seconds": 9.0, "last_token_seconds": 9.1, "total_seconds": 9.2}
PERIOD = 54.0
"""200 s exclude it."""


def asking(period: float, soak_seconds: float = 0.0) -> LoadTestPolicy:
    soak = Soak(duration_seconds=soak_seconds) if soak_seconds else None
    return POLICY.model_copy(update={"stall_period_seconds": period, "soak": soak})


def test_a_go_says_which_stalls_it_does_not_exclude():
    """4,000 requests at 20 a second: of stalls that come once in 54 s, none does so in 200 s in 2.5 % of tests."""
    summary = judge_windows([window(2000), window(2000)], POLICY).summary
    assert summary.startswith("Shown at 95 % confidence")
    assert "Stalls rarer than one in 54 s are not excluded." in summary
    assert math.exp(-200 / excluded_period(200, 0.95)) == pytest.approx(0.025)


def test_a_period_that_the_policy_names_must_have_been_watched():
    short, long = [window(1900), window(2000)], [window(2000), window(2000)]
    judgement = judge_windows(short, asking(PERIOD))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "195 s of traffic" in judgement.summary
    assert judge_windows(long, asking(PERIOD)).verdict is Verdict.GO
    assert judge_windows(short, asking(PERIOD, soak_seconds=10)).verdict is Verdict.GO, "the soak will be there, too"
    assert judge_windows([], asking(PERIOD)).verdict is Verdict.INCONCLUSIVE


def test_time_is_watched_while_requests_arrive():
    assert watched_seconds([window(200), window(100)]) == pytest.approx(300 / RATE)
    assert watched_seconds([window(0), window(1)]) == 0.0
    assert seconds_to_exclude(excluded_period(200, 0.99), 0.99) == pytest.approx(200)


@pytest.mark.parametrize("requests", [600, 2000, 4000])
def test_a_server_that_is_late_in_rare_spells_seldom_passes_where_they_had_to_be_seen(requests: int):
    """Spells of 50 late requests come once in 1,000: at p95 that is the limit itself, and not a bit better."""
    draws, runs, passed = np.random.default_rng(3), 60, 0
    for _ in range(runs):
        late = np.zeros(requests + 50, bool)
        for start in np.flatnonzero(draws.random(requests + 50) < 1 / 1000):
            late[start : start + 50] = True
        times = np.where(late[50:], 0.2, 0.02)
        passed += (
            judge_windows([bulk(part) for part in np.array_split(times, 5)], asking(1000 / RATE)).verdict is Verdict.GO
        )
    assert passed <= 7, "5 % of 60 are 3, and a fair gate has more than 7 in one run of a hundred"


def summary_of(records: Records) -> WindowSummary:
    return WindowSummary.model_construct(
        name="soak", server=ServerUse(resident_bytes=100, resident_bytes_per_second=0.0, samples=99), void="",
        window_seconds=len(records) / RATE,
    )  # fmt: skip


def test_the_soak_is_judged_like_any_other_window():
    soak = Soak(duration_seconds=600)
    policy = POLICY.model_copy(update={"attainment": 0.99, "soak": soak, "stall_period_seconds": 1e6})
    sound = window(12_000)
    stopped = Records.of(answered(k, **(LATE if 5000 <= k < 5098 else {})) for k in range(12_000))
    for records, verdict in ((sound, Verdict.GO), (stopped, Verdict.INCONCLUSIVE)):
        facts = judge_soak(records, summary_of(records), soak, policy)
        assert worst(fact.verdict for fact in facts) is verdict
    assert {"in the soak: service level met", "memory growth in the soak"} <= {fact.name for fact in facts}


def test_the_target_window_shows_how_requests_of_a_soak_wait_although_no_queue_filled_in_it():
    soak, draws = Soak(duration_seconds=60), np.random.default_rng(1)
    calm, waits = bulk(draws.uniform(0.01, 0.02, 1200)), np.where(np.arange(1200) % 400 < 100, 0.05, 0.01)
    for before, verdict in (((), Verdict.GO), ((calm,), Verdict.GO), ((bulk(waits),), Verdict.INCONCLUSIVE)):
        facts = judge_soak(calm, summary_of(calm), soak, POLICY, before)
        assert worst(fact.verdict for fact in facts) is verdict


def workload(seconds: float) -> Workload:
    return Workload(prompts="p.jsonl", rate_per_second=20, duration_seconds=seconds)


def test_a_test_that_is_too_short_for_the_period_is_refused_with_what_it_needs():
    """Confirmation and extensions last six times as long as the workload's window."""
    require_enough(workload(60), asking(90))
    with pytest.raises(ConfigError, match=r"360 s of confirmation and soak cannot exclude .* 5 min: 1107 s") as told:
        require_enough(workload(60), asking(300))
    assert "a soak of 747 s or more" in str(told.value)
    require_enough(workload(60), asking(300, soak_seconds=747))


def test_the_plan_says_what_the_first_look_and_the_soak_exclude():
    size = sample_size(workload(60), asking(90, soak_seconds=80))
    assert size.excluded_period_seconds == pytest.approx(200 / math.log(40))


def test_a_tolerated_share_of_failures_needs_its_requests_too():
    tolerant = POLICY.model_copy(update={"maximum_error_fraction": 0.001, "maximum_extension": 1.0})
    with pytest.raises(ConfigError, match=r"at most 0.1 % failed: 2995 are needed"):
        require_enough(workload(60), tolerant)
    require_enough(workload(75), tolerant)
