"""Stalls that come so rarely that a load test may not see one."""

from __future__ import annotations

import math

import pytest
from load_windows import RATE, window

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.gate import judge_windows
from llm_pipeline.loadtest.sample_size import excluded_period, require_enough, sample_size, watched_seconds

POLICY = LoadTestPolicy(
    service_level=ServiceLevel(first_token_milliseconds=100), attainment=0.95, confidence=0.95, minimum_requests=50,
    search=None,
)  # fmt: skip


def test_a_go_says_which_stalls_it_does_not_exclude():
    """4,000 requests at 20 a second: of stalls that come once in 54 s, none does so in 200 s in 2.5 % of tests."""
    summary = judge_windows([window(2000), window(2000)], POLICY).summary
    assert summary.startswith("Shown at 95 % confidence")
    assert "Stalls rarer than one in 54 s are not excluded." in summary
    assert math.exp(-200 / excluded_period(200, 0.95)) == pytest.approx(0.025)


def test_time_is_watched_while_requests_arrive():
    assert watched_seconds([window(200), window(100)]) == pytest.approx(300 / RATE)
    assert watched_seconds([window(0), window(1)]) == 0.0


def workload(seconds: float) -> Workload:
    return Workload(prompts="p.jsonl", rate_per_second=20, duration_seconds=seconds)


def test_the_plan_says_what_the_first_look_excludes():
    assert sample_size(workload(60), POLICY).excluded_period_seconds == pytest.approx(120 / math.log(40))


def test_a_tolerated_share_of_failures_needs_its_requests_too():
    tolerant = POLICY.model_copy(update={"maximum_error_fraction": 0.001})
    with pytest.raises(ConfigError, match=r"at most 0.1 % failed: 4093 are needed"):
        require_enough(workload(34), tolerant)
    require_enough(workload(35), tolerant)
