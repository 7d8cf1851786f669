"""A whole load test of a server whose queue fills, or whose client falls behind: in memory, without a clock."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from load_windows import RATE, Source, answered, records

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import LoadTestPolicy, RateSearch, ServiceLevel
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.outcome import LoadTestOutcome, RatePoint, deciding_windows
from llm_pipeline.loadtest.session import Windows, highest_passed, rates_to_confirm, run_session, search_highest_rate
from llm_pipeline.loadtest.traffic import Traffic

POLICY = LoadTestPolicy(service_level=ServiceLevel(first_token_milliseconds=500), attainment=0.98, search=None)
WORKLOAD = Workload(prompts="p.jsonl", rate_per_second=RATE, duration_seconds=60)


class Client:
    """Answers in 30 ms, or in 130 ms for so long in every minute of a window; the first windows are sent late.

    With `slower_beyond`, a half longer at rates above it.
    """

    def __init__(self, *, waits: float = 0.0, late: int = 0, slower_beyond: float = np.inf) -> None:
        self.waits, self.late, self.slower_beyond = waits, late, slower_beyond
        self.sent: list[Traffic] = []

    def send(self, traffic: Traffic) -> MeasuredWindow:
        count = len(traffic.requests)
        arrivals = np.arange(count) / RATE if traffic.arrivals is None else traffic.arrivals
        first = 0.03 * np.random.default_rng(count).lognormal(0.0, 0.2, count)
        first += np.where(arrivals % 60.0 < (self.waits if traffic.arrivals is not None else 0.0), 0.1, 0.0)
        first *= 1.5 if count / traffic.duration_seconds > self.slower_beyond else 1.0
        lag = 0.0
        if traffic.arrivals is not None:
            self.sent.append(traffic)
            self.late, lag = self.late - 1, 0.06 if self.late > 0 else 0.0
        rows = [
            answered(k, arrives_at=at, lag_seconds=lag, first_token_seconds=t, last_token_seconds=t, total_seconds=t)
            for k, (at, t) in enumerate(zip(arrivals.tolist(), (lag + first).tolist(), strict=True))
        ]
        return MeasuredWindow(records(rows), traffic.duration_seconds)


def load_tested(client: Client, policy: LoadTestPolicy = POLICY) -> LoadTestOutcome:
    return run_session(Windows(client, Source(), WORKLOAD, policy), users=4)


def test_the_windows_are_one_run_after_a_first_one_that_only_fills_the_queue():
    client = Client()
    outcome = load_tested(client)
    assert outcome.judgement.verdict is Verdict.GO, outcome.judgement.summary
    assert outcome.confirmed_rate_per_second == RATE
    assert outcome.windows[0].name == "floor", "what warmed up is in no window"
    target, run = client.sent
    assert run.duration_seconds == pytest.approx(13 * 10.0)
    judged = deciding_windows(outcome)
    assert [window.name for window in judged] == [f"confirmation-1-{number}" for number in range(1, 13)]
    assert {window.requests for window in judged} == {200}
    assert len({request.prompt.split()[0] for request in run.requests}) == 13, "a seed for each"
    assert target.duration_seconds == WORKLOAD.duration_seconds


@pytest.mark.parametrize(("waits", "growth", "seconds"), [(1.0, 3.0, 20.0), (8.0, 3.0, 30.0), (8.0, 1.0, 10.0)])
def test_windows_are_many_times_as_long_as_the_longest_wait_as_far_as_the_policy_lets_them(waits, growth, seconds):
    client = Client(waits=waits)
    outcome = load_tested(client, POLICY.model_copy(update={"window_growth": growth}))
    assert next(one for one in outcome.windows if one.phase == "target").longest_wait_seconds == pytest.approx(
        waits, abs=0.4
    )
    assert client.sent[-1].duration_seconds / 13 == pytest.approx(seconds, rel=0.15)


def test_a_higher_rate_is_confirmed_before_the_workloads():
    policy = POLICY.model_copy(update={"search": RateSearch(maximum_multiple=2.0)})
    assert load_tested(Client(), policy).confirmed_rate_per_second > 1.5 * RATE
    slow = load_tested(Client(slower_beyond=1.3 * RATE), policy.model_copy(
        update={"service_level": ServiceLevel(first_token_milliseconds=50)}))  # fmt: skip
    assert RATE <= slow.confirmed_rate_per_second <= 1.3 * RATE


def test_a_run_whose_windows_are_mostly_void_is_sent_once_more():
    again = load_tested(Client(late=3))  # the target's window twice, and the first run
    assert again.judgement.verdict is Verdict.GO, again.judgement.summary
    assert deciding_windows(again)[0].name == "confirmation-1-13"
    never = load_tested(Client(late=99))
    assert never.judgement.verdict is Verdict.INCONCLUSIVE
    assert "the load generator could not keep up" in never.judgement.summary.lower()


def test_a_target_window_that_misses_the_service_level_in_all_its_parts_decides_alone():
    client = Client(slower_beyond=0.0)
    outcome = load_tested(
        client, POLICY.model_copy(update={"service_level": ServiceLevel(first_token_milliseconds=20)})
    )
    assert outcome.judgement.verdict is Verdict.NO_GO
    assert len(client.sent) == 1


SEARCH = RateSearch(resolution=0.1)


def point(rate: float, limit: float) -> RatePoint:
    verdict = Verdict.GO if rate <= limit else Verdict.NO_GO
    return RatePoint(rate_per_second=rate, good_fraction=1.0, verdict=verdict, window="w")


def found(limit: float, start: float = 20.0, most: float = 1000.0) -> tuple[RatePoint, ...]:
    return search_highest_rate(point(start, limit), most, SEARCH, lambda rate: point(rate, limit))


@pytest.mark.parametrize("limit", [2.0, 19.0, 20.0, 33.0, 150.0, 640.0])
def test_the_limit_is_found_within_the_resolution_and_never_above(limit):
    highest = highest_passed(found(limit))
    assert 0.9 * limit <= highest <= limit


def test_no_rate_is_tried_twice_or_above_the_most():
    rates = [p.rate_per_second for p in found(limit=1e9, most=70.0)]
    assert rates == [20.0, 40.0, 70.0]
    assert all(low < high for low, high in pairwise(rates))


def test_a_server_that_holds_nothing_ends_the_search():
    points = found(limit=0.0)
    assert highest_passed(points) is None
    assert len(points) == 5


def test_a_pass_above_a_failure_is_chance():
    points = (point(10, 10), point(20, 10), point(30, 100))
    assert highest_passed(points) == 10


def test_a_void_probe_is_no_pass():
    void = point(20, 100).model_copy(update={"verdict": Verdict.INCONCLUSIVE})
    assert highest_passed((point(10, 100), void)) == 10


@pytest.mark.parametrize(
    ("highest", "rates"), [(None, (20,)), (20.0, (20,)), (22.0, (20,)), (40.0, (36, 28, 20)), (80.0, (72, 56, 20))]
)
def test_what_is_confirmed_are_shares_of_the_highest_rate_and_at_last_the_target(highest, rates):
    assert rates_to_confirm(20.0, highest) == pytest.approx(rates, rel=1e-3)
