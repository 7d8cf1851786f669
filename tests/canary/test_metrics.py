"""What a canary counts of requests, ended or in flight, and what it learns of stable before the first step."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from looking import LIMITS, request

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.access_log import ObservedRequest
from llm_pipeline.canary.analysis import StepState
from llm_pipeline.canary.controller import LoggedTraffic
from llm_pipeline.canary.deciding import does_not_answer
from llm_pipeline.canary.metrics import (
    MOST_IN_FLIGHT,
    ArmWindow,
    Histogram,
    Limit,
    SourceDown,
    Thresholds,
    Window,
    thresholds_from_counts,
    window,
    window_from_counts,
)
from llm_pipeline.canary.record import CanaryPlan, new_attempt
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.statistics.eprocess import SplitTest
from llm_pipeline.store.place_state import Pointer


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


class Log:
    """A log of which the newest part is short."""

    def __init__(self, requests: list[ObservedRequest], newest: int) -> None:
        self.requests, self.newest, self.reads = requests, newest, []

    def recent(self, since: float, most_bytes: int = 0) -> list[ObservedRequest]:
        self.reads.append(most_bytes)
        found = self.requests if most_bytes else self.requests[-self.newest :]
        return [one for one in found if one.started_at >= since]


def baseline(log: Log, *, production_hours: float):
    since = datetime.fromtimestamp(time.time() - 3600.0 * production_hours, UTC)
    old, new = (ArtifactRef(kind="model_repository", digest=digit * 64) for digit in "ab")
    production = Pointer(release_id="r0", repository=old, slot="blue", recipe="none", promoted_at=since)
    plan = CanaryPlan(
        release_id="r1", run="run", target="cpu", candidate=new, production=production, policy=CanaryPolicy()
    )
    traffic = LoggedTraffic(log)  # type: ignore[arg-type] - a log in memory
    return traffic.baseline(new_attempt(plan), plan.policy)


@pytest.mark.parametrize(("hours", "seconds"), [(5.0, 3600), (0.5, 1800)])
def test_stables_history_of_an_hour_is_learned_from_as_far_as_it_is_production(hours, seconds) -> None:
    now = time.time()
    log = Log([request(at=now - 7200 + number) for number in range(7200)], newest=100)
    thresholds, requests, _ = baseline(log, production_hours=hours)
    assert thresholds is not None
    assert requests == pytest.approx(seconds, abs=5)
    variation = thresholds.variations["slow end"]
    assert variation.segments * variation.blocks == pytest.approx(seconds / 10, abs=variation.blocks)


def test_a_long_log_is_not_read_while_stable_has_little_traffic() -> None:
    log = Log([request(at=time.time() - 40.0 + number) for number in range(40)], newest=40)
    assert baseline(log, production_hours=5.0)[0] is None
    assert log.reads == [0]


def split_of(candidate: int, stable: int, share: float = 0.25) -> StepState:
    split = SplitTest(intended=share).observe(candidate_requests=candidate, stable_requests=stable)
    assert split.rejects(0.001), "or else nobody asks"
    return StepState(share=share, split=split)


@pytest.mark.parametrize("waits", [140, 200, 350])
def test_requests_that_wait_at_the_candidate_explain_those_that_are_missing_however_far_the_log_is_behind(
    waits,
) -> None:
    found = does_not_answer(split_of(40, 560), candidate_waits=waits, stable_waits=2)
    assert found is not None
    assert found.verdict is Verdict.NO_GO


@pytest.mark.parametrize(
    ("candidate", "stable", "waits"),
    [(40, 560, 0), (40, 560, 10), (40, 560, 90), (300, 300, 40)],
    ids=["nobody waits", "too few wait", "enough for doubt wait, not for an explanation", "too many were sent"],
)
def test_a_split_that_waiting_requests_do_not_explain_is_the_routers(candidate, stable, waits) -> None:
    assert does_not_answer(split_of(candidate, stable), candidate_waits=waits, stable_waits=0) is None


POLICY = CanaryPolicy(minimum_requests=50, slow_quantiles=(0.5, 0.9, 0.99))
EDGES = (50.0, 100.0, 250.0, 500.0, 1000.0)


def histogram(*counts: int, total: int) -> Histogram:
    return Histogram(edges=EDGES, counts=counts, total=total)


def thresholds() -> Thresholds:
    stable = ArmWindow(requests=1000, errors=4, end_to_end=histogram(480, 700, 930, 985, 996, total=996))
    found = thresholds_from_counts(stable, POLICY)
    assert found is not None
    return found


def test_limits_are_the_edges_at_or_above_stables_quantiles():
    slow = thresholds().limits["slow end"]
    assert [(one.milliseconds, one.label) for one in slow] == [(100.0, "p50"), (250.0, "p90"), (1000.0, "p99")]
    assert list(thresholds().limits) == ["failed answers", "slow end"], "what it does not show is not compared"


def test_the_multiple_is_an_edge_too_and_each_edge_is_one_limit():
    few = ArmWindow(requests=60, end_to_end=histogram(58, 60, 60, 60, 60, total=60))
    found = thresholds_from_counts(few, POLICY)
    assert found is not None
    assert [(one.milliseconds, one.label) for one in found.limits["slow end"]] == [(50.0, "p50"), (250.0, "4 x p50")]


@pytest.mark.parametrize("slow", [histogram(0, 0, 0, 0, 0, total=60), Histogram(edges=(), counts=(), total=0)])
def test_latencies_without_a_limit_are_missing_data_but_not_everybody_streams(slow):
    none = Histogram(edges=(), counts=(), total=0)
    with pytest.raises(SourceDown, match=r"no limit for a slow end: its buckets hold \d+ of 60 requests"):
        thresholds_from_counts(ArmWindow(requests=60, first_token=none, end_to_end=slow), POLICY)
    found = thresholds_from_counts(ArmWindow(requests=60, first_token=none), POLICY)
    assert found is not None
    assert list(found.limits) == ["failed answers"]
    assert thresholds_from_counts(ArmWindow(requests=60, errors=20), POLICY) is None, "too few"


def test_a_window_has_failures_and_what_lies_beyond_each_edge():
    arms = {
        "green": ArmWindow(requests=40, errors=3, lost=1, end_to_end=histogram(1, 20, 30, 35, 36, total=37)),
        "blue": ArmWindow(requests=60, end_to_end=histogram(30, 40, 55, 60, 60, total=60)),
    }
    seen = window_from_counts(arms, "green", thresholds())
    assert (seen.candidate.requests, seen.candidate.failed, seen.candidate.lost) == (40, 3, 1)
    failed, slow = seen.counts["failed answers"], seen.counts["slow end"]
    assert (failed.candidate.events, failed.stable.events) == ((3,), (0,))
    assert (slow.candidate.requests, slow.candidate.events) == (37, (17, 7, 1))
    assert (slow.stable.requests, slow.stable.events) == (60, (20, 5, 0))


@pytest.mark.parametrize(("errors", "trailing", "all_faults"), [(5, 5, True), (4, 0, False), (0, 0, False)])
def test_the_order_of_failures_is_known_only_when_all_failed(errors, trailing, all_faults):
    seen = window_from_counts({"green": ArmWindow(requests=5, errors=errors)}, "green", thresholds())
    assert (seen.failed_in_a_row, seen.all_failed) == (trailing, all_faults)


def test_other_buckets_than_those_of_the_baseline_are_refused():
    other = Histogram(edges=(60.0, 120.0), counts=(1, 2), total=3)
    with pytest.raises(ConfigError, match="no bucket ends at 100 ms, they end at 60, 120"):
        window_from_counts({"green": ArmWindow(requests=3, end_to_end=other)}, "green", thresholds())


def test_failures_that_are_no_requests_are_the_configurations_fault():
    with pytest.raises(ConfigError, match="slot green has 5 errors in 2 requests"):
        window_from_counts({"green": ArmWindow(requests=2, errors=5)}, "green", thresholds())
