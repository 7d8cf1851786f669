"""What a connection's other side must keep up with."""

from __future__ import annotations

import pytest

from llm_pipeline.base.timed_connection import AnswerTooLong, Deadline, MinimumRate, TooSlow, passed_limit


def test_a_slow_but_steady_side_is_never_too_slow() -> None:
    rate = MinimumRate(10_000, 60.0)
    for _ in range(1000):
        rate.count(20_001, 2.0)
        assert 0.0 < rate.seconds_left() <= 60.0


def test_a_side_below_the_rate_is_too_slow_when_the_window_ends() -> None:
    rate = MinimumRate(10_000, 60.0)
    for _ in range(29):
        rate.count(1, 2.0)
    assert rate.seconds_left() == 2.0
    with pytest.raises(TooSlow, match="30 bytes in 60 s, fewer than 10000 a second"):
        rate.count(1, 2.0)


def test_what_came_early_does_not_pay_for_a_later_window() -> None:
    rate = MinimumRate(10_000, 60.0)
    rate.count(1_000_000_000, 60.0)
    with pytest.raises(TooSlow):
        rate.count(0, 60.0)


def test_a_deadline_passes_whatever_came() -> None:
    deadline = Deadline(0.0, what="the head")
    deadline.count(1_000_000_000, 0.0)
    with pytest.raises(TooSlow, match="the head was not complete after 0 s"):
        deadline.seconds_left()


def test_a_deadline_may_bound_bytes_too() -> None:
    deadline = Deadline(60.0, 10)
    deadline.count(10, 0.0)
    with pytest.raises(AnswerTooLong, match="more than 10 bytes"):
        deadline.count(1, 0.0)


def test_the_limit_is_found_among_the_causes_of_a_client_s_error() -> None:
    aborted, timed_out = ConnectionError("aborted"), ConnectionError("timed out")
    aborted.__context__, timed_out.__cause__ = timed_out, TooSlow("slow")
    assert str(passed_limit(aborted)) == "slow"
    assert passed_limit(ConnectionError("reset")) is None
