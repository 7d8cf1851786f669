"""One window in figures."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from load_sample import POLICY, measured_window
from load_windows import Row, answered, records

from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.outcome import ServerUse, WindowSummary
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.loadtest.windows import longest_wait, summarize_window


def summary(*, rate: float = 20.0, seconds: float = 15.0, broken: int = 6, seed: int = 1) -> WindowSummary:
    traffic, measured = measured_window(rate, seconds, seed, broken=broken)
    return summarize_window("target", "target", seed, traffic, measured, POLICY)


def of_rows(*rows: Row) -> WindowSummary:
    traffic = Traffic.closed_loop([LoadRequest("p", 8)], 1, 10.0)
    measured = MeasuredWindow(records(rows), 10.0, ServerUse())
    return summarize_window("floor", "floor", 0, traffic, measured, POLICY)


def test_failed_requests_are_counted_by_kind_and_kept_out_of_the_percentiles():
    result = summary()
    assert (result.requests, result.failed, result.faults) == (300, 6, {"stream cut": 6})
    assert result.fault_detail == "connection reset by peer"
    assert result.answered_per_second == pytest.approx(294 / 15)


def test_a_request_is_good_within_every_limit_and_only_then():
    slow = {"first_token_seconds": 0.251, "last_token_seconds": 0.4}
    late = {"total_seconds": 1.501}
    result = of_rows(answered(0), answered(1, **slow), answered(2, **late), answered(3, fault=Fault.SHED))
    assert result.good_fraction == 0.25
    assert result.failed == 1


def test_users_who_left_as_planned_are_neither_good_nor_bad():
    result = of_rows(answered(0), answered(1, fault=Fault.LEFT))
    assert (result.requests, result.failed, result.good_fraction, result.faults) == (1, 0, 1.0, {})


def test_the_longest_wait_is_the_longest_time_in_which_requests_in_a_row_were_slow():
    moments = np.arange(40) / 2
    assert longest_wait(moments, np.isin(np.arange(40), [4, 5, 6, 7, 10, 20, 21]) + 0.0) == 2.0, "four requests"
    assert longest_wait(moments[:1], np.ones(1)) == 0.0
