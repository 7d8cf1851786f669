"""A whole load test of a server whose queue fills, or whose client falls behind: in memory, without a clock."""

from __future__ import annotations

import numpy as np
import pytest
from load_windows import answered

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import LoadTestPolicy, RateSearch, ServiceLevel
from llm_pipeline.config.workload import Workload
from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.physics import FloorTimes
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.session import Limits, confirm, run_session
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.loadtest.windows import Windows

RATE = 20.0
POLICY = LoadTestPolicy(service_level=ServiceLevel(first_token_milliseconds=500), attainment=0.99, search=None)
WORKLOAD = Workload(prompts="p.jsonl", rate_per_second=RATE, duration_seconds=40)


class Source:
    """Traffic at regular times."""

    def closed_loop(self, users: int, seconds: float, seed: int, *, maximum_requests: int) -> Traffic:
        return Traffic.closed_loop([LoadRequest(f"{seed} {n}", 8) for n in range(maximum_requests)], users, seconds)

    def open_loop(self, rate: float, seconds: float, seed: int) -> Traffic:
        count = int(rate * seconds)
        return Traffic.open_loop(
            [LoadRequest(f"{seed} {n}", 8) for n in range(count)], np.arange(count) / rate, seconds
        )


class Client:
    """Answers at once. In windows of so many seconds 100 requests of 400 wait, but not too long."""

    def __init__(self, waiting_window_seconds: float = 0.0) -> None:
        self.waiting_window_seconds = waiting_window_seconds

    def send(self, traffic: Traffic) -> MeasuredWindow:
        draws, rows = np.random.default_rng(len(traffic.requests)), []
        for number in range(len(traffic.requests)):
            first = 0.03 * float(draws.lognormal(0.0, 0.2))
            if traffic.duration_seconds == self.waiting_window_seconds and number % 400 < 100:
                first += 0.1
            rows.append(
                answered(number, first_token_seconds=first, last_token_seconds=first, total_seconds=first + 0.05)
            )
        return MeasuredWindow(Records.of(rows), traffic.duration_seconds)


def test_a_queue_that_fills_in_the_target_window_alone_keeps_the_confirmation_from_passing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("llm_pipeline.loadtest.session.EXTENSIONS", 1)
    workload = WORKLOAD.model_copy(update={"duration_seconds": 1200 / RATE})
    client = Client(waiting_window_seconds=workload.duration_seconds)
    judgement = run_session(Windows(client, Source(), workload, POLICY), users=4).judgement
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "even with none late" in judgement.summary


class SlowerByRate(Client):
    """Takes a half longer at rates above the target's."""

    def send(self, traffic: Traffic) -> MeasuredWindow:
        draws, count = np.random.default_rng(len(traffic.requests)), len(traffic.requests)
        slower = 1.5 if count / traffic.duration_seconds > 1.1 * RATE else 1.0
        times = (slower * 0.2 * draws.lognormal(0.0, 0.05, count)).tolist()
        rows = [
            answered(number, first_token_seconds=first, last_token_seconds=first, total_seconds=first + 0.05)
            for number, first in enumerate(times)
        ]
        return MeasuredWindow(Records.of(rows), traffic.duration_seconds)


def test_a_window_of_a_lower_rate_says_nothing_of_how_windows_differ():
    """It is faster because it asks for less: 0.2 s to the first token, and 0.3 s at the rate that is confirmed."""
    policy = LoadTestPolicy(
        service_level=ServiceLevel(first_token_milliseconds=400), search=RateSearch(maximum_multiple=2.0)
    )
    outcome = run_session(Windows(SlowerByRate(), Source(), WORKLOAD, policy), users=4)
    assert outcome.judgement.verdict is Verdict.GO
    assert outcome.confirmed_rate_per_second > 1.5 * RATE


IMPATIENT = POLICY.model_copy(update={"maximum_client_lag_milliseconds": 5.0})


class BehindAtFirst(Client):
    """Sends the first windows of an open loop late, and the others in time."""

    def __init__(self, late: int) -> None:
        super().__init__()
        self.late = late

    def send(self, traffic: Traffic) -> MeasuredWindow:
        measured = super().send(traffic)
        self.late -= traffic.arrivals is not None
        if self.late >= 0 and traffic.arrivals is not None:
            measured.records.columns["lag_seconds"][:] = 0.012
        return measured


def test_a_window_that_is_void_twice_does_not_decide_over_those_that_follow():
    windows = Windows(BehindAtFirst(late=2), Source(), WORKLOAD, IMPATIENT)
    decision = confirm(windows, None, Limits(FloorTimes()))
    assert [bool(window.void) for window in windows.summaries][:3] == [True, True, False]
    assert decision.judgement.verdict is Verdict.GO, decision.judgement.summary


def test_windows_that_are_all_void_decide_nothing():
    decision = confirm(Windows(BehindAtFirst(late=99), Source(), WORKLOAD, IMPATIENT), None, Limits(FloorTimes()))
    assert decision.judgement.verdict is Verdict.INCONCLUSIVE
    assert "the load generator could not keep up" in decision.judgement.summary.lower()
