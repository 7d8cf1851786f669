"""A request counts from its start, and with its age while it hangs."""

from __future__ import annotations

import pytest
from looking import LIMITS, request

from llm_pipeline.canary.access_log import ObservedRequest
from llm_pipeline.canary.metrics import MOST_IN_FLIGHT, Limit, Window, window


def line(age: float, identity: str = "a", *, first: float | None = None, ends: str = "") -> ObservedRequest:
    """A request of the candidate's arm: in flight, or `answered`, `left` or `failed`."""
    return request(
        "green",
        at=100.0,
        fault=ends == "failed",
        cancelled=ends == "left",
        first=first,
        total=age,
        identity=identity,
        in_flight=not ends,
    )


def looks(*lines: ObservedRequest) -> list[Window]:
    """A look at each line; what is in flight is stored between them."""
    windows = [Window()]
    for one in lines:
        stored = Window.model_validate_json(windows[-1].model_dump_json())
        windows.append(window([one], "green", LIMITS, 0.0, stored.in_flight))
    return windows[1:]


def summed(windows: list[Window], name: str) -> tuple[int, tuple[int, ...]]:
    """Requests and events of a metric over all looks."""
    found = [seen.counts[name].candidate for seen in windows]
    return sum(one.requests for one in found), tuple(map(sum, zip(*(one.events for one in found), strict=True)))


def test_a_request_counts_once_however_often_it_is_seen() -> None:
    windows = looks(line(90.0), line(95.0), line(99.0, first=40.0, ends="answered"))
    assert [seen.candidate.requests for seen in windows] == [1, 0, 0]
    assert windows[-1].in_flight == {}
    assert (summed(windows, "failed answers"), summed(windows, "slow end")) == ((1, (0,)), (1, (0, 0)))


def test_the_age_of_a_request_in_flight_is_judged_once_and_before_its_end() -> None:
    windows = looks(line(90.0), line(350.0), line(450.0), line(900.0), line(8000.0, ends="left"))
    assert [seen.counts["slow end"].candidate.requests for seen in windows] == [0, 0, 1, 0, 0]
    assert summed(windows, "slow end") == summed(windows, "slow first token") == (1, (1, 1))


def test_a_stream_that_stalls_is_judged_by_its_age_and_not_by_its_first_token() -> None:
    windows = looks(line(90.0, first=20.0), line(900.0, first=20.0))
    assert summed(windows, "slow first token") == (1, (0, 0))
    assert summed(windows, "slow end") == (1, (1, 1))


def test_what_a_long_request_turns_out_to_be_still_counts_when_it_ends() -> None:
    windows = looks(line(5000.0), line(6000.0, ends="failed"))
    assert (windows[-1].candidate.failed, windows[-1].failed_in_a_row) == (1, 1)
    assert summed(windows, "failed answers") == (1, (1,))
    assert summed(windows, "slow end") == (1, (1, 1))


@pytest.mark.parametrize(("left_after", "counts"), [(90.0, (0, (0, 0))), (300.0, (1, (1, 0)))])
def test_an_answer_that_its_user_left_is_judged_where_its_age_says_something(left_after, counts) -> None:
    windows = looks(line(left_after, ends="left"))
    assert summed(windows, "slow end") == counts
    assert (windows[0].candidate.requests, summed(windows, "failed answers")) == (1, (0, (0,)))


@pytest.mark.parametrize(("first", "seconds", "judged"), [(10, 20, 0), (10, 31, 1), (40, 35, 0), (40, 45, 1)])
def test_nobody_has_to_wait_for_a_multiple_of_a_long_answer(first, seconds, judged) -> None:
    limits = tuple(Limit(milliseconds=by * 1000.0 * first) for by in (1, 4))
    slow_model = LIMITS.model_copy(update={"limits": {"slow end": limits}})
    seen = window([line(seconds * 1000.0)], "green", slow_model, 0.0)
    assert seen.counts["slow end"].candidate.requests == judged


def test_what_is_remembered_of_requests_in_flight_is_bounded_and_a_router_that_is_gone_is_forgotten() -> None:
    seen = window([line(90.0, str(number)) for number in range(MOST_IN_FLIGHT + 50)], "green", LIMITS, 0.0)
    assert len(seen.in_flight) == seen.candidate.requests == MOST_IN_FLIGHT
    later = window([line(90_000.0, "new")], "green", LIMITS, 0.0, seen.in_flight)
    assert list(later.in_flight) == ["new"]
