"""Sessions as units, however many there are."""

from __future__ import annotations

from test_analysis import request

from llm_pipeline.canary.metric_events import unit_of
from llm_pipeline.canary.sessions import MOST_OBSERVED, SessionRequest, Sessions, by_session


def test_a_baseline_has_all_sessions_though_few_are_observed_at_a_time() -> None:
    requests = [request(at=float(n), session=f"{n % 3_000 * 7_919:x}", fault=n >= 3_000) for n in range(3_100)]
    units = by_session(requests, [unit_of(one, on_trial=False) for one in requests], 5_000.0)
    assert len(units) == 3_000 > MOST_OBSERVED
    assert sum(bool(unit.error) for unit in units) == 100


def test_sessions_are_joined_in_a_baseline_as_they_are_in_a_canary() -> None:
    requests = [request(at=n / 10, session=f"{n * n % 37:x}", fault=n % 7 == 0) for n in range(300)]
    units = [unit_of(one, on_trial=False) for one in requests]
    observed, seen = Sessions(), []
    for one, unit in zip(requests, units, strict=True):
        session = SessionRequest(session=str(one.session), started_at=one.started_at, unit=unit)
        observed, over = observed.observe([session], one.started_at, 2.0)
        seen += over
    seen += observed.observe([], float("inf"), 2.0)[1]
    joined = by_session(requests, units, 2.0)
    assert sorted(map(repr, joined)) == sorted(map(repr, seen))
