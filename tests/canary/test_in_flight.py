from __future__ import annotations

import pytest

from llm_pipeline.canary.arm_counts import MOST, NOTHING_IN_FLIGHT, ArmEvents, InFlight, Window, window
from llm_pipeline.canary.metric_events import Limit, MetricLimits
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.slow_limits import Thresholds

LIMITS = Thresholds(
    requests=100,
    metrics=(
        MetricLimits(name="errors"),
        MetricLimits(name="slow first token", limits=tuple(Limit(value=by * 50.0, label="p") for by in (1, 2, 4, 8))),
        MetricLimits(name="slow end to end", limits=tuple(Limit(value=by * 500.0, label="p") for by in (1, 2, 4, 8))),
        MetricLimits(name="abandoned requests"),
    ),
)


def line(age: float, identity: str = "a", *, first: float | None = None, ends: str = "") -> ObservedRequest:
    """A request of the candidate's arm: in flight, or `answered`, `left` or `failed`."""
    return ObservedRequest(
        started_at=100.0,
        arm="green",
        on_trial=True,
        fault=ends == "failed",
        error=ends == "failed",
        lost=ends == "failed",
        cancelled=ends == "left",
        streaming=True,
        first_byte_milliseconds=first,
        total_milliseconds=age,
        bytes_sent=0,
        identity=identity,
        in_flight=not ends,
    )


def looks(*lines: ObservedRequest) -> list[Window]:
    """A look at each line; what is in flight is stored between them."""
    seen, windows = NOTHING_IN_FLIGHT, []
    for one in lines:
        windows.append(window([one], "green", LIMITS, 0.0, seen))
        seen = InFlight.model_validate_json(windows[-1].in_flight.model_dump_json())
    return windows


def events(seen: Window, name: str) -> ArmEvents:
    return next(counts.candidate for counts in seen.counts if counts.name == name)


def summed(windows: list[Window], name: str) -> tuple[int, tuple[int, ...]]:
    """Units and events of a metric over all looks."""
    found = [events(seen, name) for seen in windows if seen.counts]
    return sum(one.units for one in found), tuple(map(sum, zip(*(one.events for one in found), strict=True)))


def test_a_request_counts_once_however_often_it_is_seen() -> None:
    windows = looks(line(1000.0), line(2000.0), line(2500.0, first=40.0, ends="answered"))
    assert [seen.candidate.requests for seen in windows] == [1, 0, 0]
    assert [seen.candidate_units for seen in windows] == [1, 0, 0]
    assert windows[-1].in_flight == NOTHING_IN_FLIGHT
    assert summed(windows, "errors") == (1, (0,))


def test_the_age_of_a_request_in_flight_is_judged_once_and_before_its_end() -> None:
    windows = looks(*(line(second * 1000.0) for second in range(1, 8)), line(8000.0, ends="left"))
    assert [events(seen, "slow end to end").units if seen.counts else 0 for seen in windows] == [0] * 4 + [1] + [0] * 3
    assert summed(windows, "slow end to end") == (1, (1, 1, 1, 1))
    assert summed(windows, "slow first token") == (1, (1, 1, 1, 1))
    assert summed(windows, "abandoned requests") == (1, (1,))


def test_a_stream_that_stalls_after_its_first_token_is_judged_by_its_age_and_not_by_its_first_token() -> None:
    windows = looks(*(line(second * 1000.0, first=20.0) for second in range(1, 6)))
    assert summed(windows, "slow first token") == (1, (0, 0, 0, 0))
    assert summed(windows, "slow end to end") == (1, (1, 1, 1, 1))


def test_what_a_long_request_turns_out_to_be_still_counts_when_it_ends() -> None:
    windows = looks(line(5000.0), line(6000.0, ends="failed"))
    assert (windows[-1].candidate.errors, windows[-1].trailing_faults) == (1, 1)
    assert summed(windows, "errors") == (1, (1,))
    assert summed(windows, "slow end to end") == (1, (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("top_seconds", "seconds", "judged"), [(10, 20, False), (10, 31, True), (40, 35, False), (40, 45, True)]
)
def test_nobody_has_to_wait_for_eight_times_a_long_answer(top_seconds, seconds, judged) -> None:
    long = LIMITS.metrics[2].model_copy(
        update={"limits": tuple(Limit(value=by * 1000.0 * top_seconds, label="p") for by in (1, 2, 4, 8))}
    )
    slow_model = LIMITS.model_copy(update={"metrics": (LIMITS.metrics[0], long)})
    seen = window([line(seconds * 1000.0)], "green", slow_model, 0.0)
    assert events(seen, "slow end to end").units == judged


def test_what_is_remembered_of_requests_in_flight_is_bounded_and_a_router_that_is_gone_is_forgotten() -> None:
    seen = window([line(1000.0, str(number)) for number in range(MOST + 50)], "green", LIMITS, 0.0)
    assert len(seen.in_flight.requests) == seen.candidate.requests == MOST
    later = window([line(90_000.0, "new")], "green", LIMITS, 0.0, seen.in_flight)
    assert list(later.in_flight.requests) == ["new"]
