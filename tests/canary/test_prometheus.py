"""Counts from Prometheus: against a double of its query API.

The double knows what our queries need and no more: a selector with exact labels, `last_over_time` and `timestamp`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_double import Counters, PrometheusDouble

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.prometheus.adapter import ADAPTER, PrometheusSource
from llm_pipeline.adapters.prometheus.source import PrometheusMetrics
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.metrics import ArmWindow, SourceDown
from llm_pipeline.canary.router import SlotName


@pytest.fixture
def double() -> Iterator[PrometheusDouble]:
    with PrometheusDouble() as server:
        yield server


def source(url: str, **changes: Any) -> PrometheusSource:
    values = {
        "kind": "prometheus", "url": url, "slot_label": "pod", "slots": {"blue": "b", "green": "g"},
        "requests": 'requests_total{model="llm"}', "errors": 'requests_total{model="llm",code="500"}',
        "end_to_end": "seconds_bucket", "scrape_seconds": 1.0,
    }  # fmt: skip
    return PrometheusSource.model_validate({**values, **changes})


def serve(counters: Counters, pod: str, ok: int, failed: int = 0, fast: int = 0) -> None:
    """What a server's metrics say after so many requests, `fast` of which took no longer than 100 ms."""
    counters["requests_total", (("code", "200"), ("model", "llm"), ("pod", pod))] = ok
    if failed:
        counters["requests_total", (("code", "500"), ("model", "llm"), ("pod", pod))] = failed
    for edge, count in (("0.1", fast), ("0.5", ok), ("+Inf", ok)):
        counters["seconds_bucket", (("le", edge), ("pod", pod))] = count


def windows(found: dict[SlotName, ArmWindow]) -> dict[str, tuple[int, int]]:
    return {slot: (arm.requests, arm.errors) for slot, arm in found.items()}


AGO = 30.0


def two_scrapes(double: PrometheusDouble, before: Counters, after: Counters) -> float:
    """One scrape well before the window began, and one that is fresh."""
    now = time.time()
    double.scrape(now - AGO - 1, before)
    double.scrape(now - 0.01, after)  # queries name their time to the millisecond
    return now - AGO


def served(blue: tuple[int, int, int], green: tuple[int, int, int]) -> Counters:
    counters: Counters = {}
    serve(counters, "b", *blue)
    serve(counters, "g", *green)
    return counters


def of(pod: str, counters: Counters, name: str = "") -> Counters:
    """What one server counts; of other counters than `name`, if there is one, all of both."""
    others = {series: count for series, count in counters.items() if name and series[0] != name}
    return others | {series: count for series, count in counters.items() if ("pod", pod) in series[1]}


def test_a_window_is_the_growth_of_every_series(double):
    since = two_scrapes(double, served((100, 2, 50), (10, 0, 5)), served((400, 3, 250), (30, 4, 6)))
    found, _ = PrometheusMetrics(source(double.url)).window(since)
    assert windows(found) == {"blue": (301, 1), "green": (24, 4)}, "errors that begin with this window, too"
    histogram = found["green"].end_to_end
    assert histogram.edges == (100.0, 500.0)
    assert (histogram.beyond(100.0), histogram.beyond(500.0), histogram.total) == (19, 0, 20)
    with pytest.raises(ConfigError, match="no bucket ends at 200 ms"):
        histogram.beyond(200.0)


def test_an_arm_that_has_answered_nothing_of_a_kind_yet_has_nothing_slow_of_it(double):
    before, after = (of("b", served((n, 0, 50), (n, 0, 0)), "seconds_bucket") for n in (100, 400))
    found, _ = PrometheusMetrics(source(double.url)).window(two_scrapes(double, before, after))
    assert found["green"].end_to_end.beyond(100.0) == 0


def test_a_candidate_may_count_from_its_first_request_on(double):
    since = two_scrapes(double, of("b", served((1, 0, 0), (0, 0, 0))), of("b", served((9, 0, 0), (0, 0, 0))))
    assert windows(PrometheusMetrics(source(double.url)).window(since)[0]) == {"blue": (8, 0)}


def test_what_is_written_late_is_in_the_next_window(double):
    late, newest = served((210, 0, 0), (24, 0, 0)), time.time() - 8.0
    since = two_scrapes(double, served((100, 0, 0), (10, 0, 0)), {})
    double.scrape(newest - 1.5, served((200, 0, 0), (20, 0, 0)))
    double.scrape(newest, of("b", late))
    metrics = PrometheusMetrics(source(double.url, scrape_seconds=5.0))
    found, until = metrics.window(since)
    assert windows(found) == {"blue": (100, 0), "green": (10, 0)}
    assert metrics.window(until) == ({}, until), "nothing new is known yet"
    double.scrape(newest, of("g", late))
    assert windows(metrics.window(until)[0]) == {"blue": (10, 0), "green": (4, 0)}


def test_doctor_counts_the_series_of_each_selector(double):
    two_scrapes(double, served((100, 0, 0), (10, 0, 0)), served((200, 0, 0), (20, 0, 0)))
    place = EnvoyPlace(port=18000, admin_port=18001)
    assert ADAPTER.probe(source(double.url), place) == (
        f"{double.url} answers and has series: 2 of requests, 0 of errors, 6 of end_to_end"
    )


def test_a_restarted_server_has_counted_from_zero(double):
    since = two_scrapes(double, served((100, 0, 0), (50, 0, 0)), served((200, 0, 0), (7, 0, 0)))
    assert windows(PrometheusMetrics(source(double.url)).window(since)[0])["green"] == (7, 0)


def test_old_requests_are_not_counted_for_a_new_split():
    cursor = PrometheusMetrics(source("http://127.0.0.1:9", scrape_seconds=2.0)).begin()
    assert cursor == pytest.approx(time.time() + 2.0, abs=0.5), "until the next scrape they cannot be told apart"


def test_a_source_without_an_answer_is_down():
    with pytest.raises(SourceDown, match="does not answer"):
        PrometheusMetrics(source("http://127.0.0.1:9")).window(0.0)


@pytest.mark.parametrize("wrong", [{"blue": "b", "green": "h"}, {"blue": "green", "green": "g"}])
def test_an_arm_without_series_is_no_arm_without_errors(double, wrong):
    since = two_scrapes(double, served((1, 0, 0), (1, 0, 0)), served((9, 0, 0), (9, 0, 0)))
    with pytest.raises(SourceDown, match=r'8 requests are under pod="[bg]", which is not a slot'):
        PrometheusMetrics(source(double.url, slots=wrong)).window(since)
    with pytest.raises(SourceDown, match="there are no requests of either slot"):
        PrometheusMetrics(source(double.url, requests="request_total")).window(since)


def test_an_answer_with_warnings_may_be_half_of_the_truth(double):
    since = two_scrapes(double, served((1, 0, 0), (1, 0, 0)), served((9, 0, 0), (9, 0, 0)))
    double.warnings = ["store 10.0.0.7 did not answer"]
    with pytest.raises(SourceDown, match=r"store 10\.0\.0\.7"):
        PrometheusMetrics(source(double.url)).window(since)


def test_old_samples_are_stale(double):
    now = time.time()
    double.scrape(now - 9, served((9, 0, 0), (9, 0, 0)))
    with pytest.raises(SourceDown, match=r"newest sample of slot \w+ is \d+ s old"):
        PrometheusMetrics(source(double.url)).window(now - 8)


def test_the_token_is_sent_and_told_to_nobody(double, monkeypatch):
    double.token = "very-secret"
    since = two_scrapes(double, served((1, 0, 0), (1, 0, 0)), served((9, 0, 0), (9, 0, 0)))
    with pytest.raises(ConfigError, match="PROMETHEUS_TOKEN must hold a token"):
        PrometheusMetrics(source(double.url, token_variable="PROMETHEUS_TOKEN"))
    monkeypatch.setenv("PROMETHEUS_TOKEN", "very-secret")
    found, _ = PrometheusMetrics(source(double.url, token_variable="PROMETHEUS_TOKEN")).window(since)
    assert windows(found) == {"blue": (8, 0), "green": (8, 0)}
    monkeypatch.setenv("PROMETHEUS_TOKEN", "wrong-secret")
    with pytest.raises(SourceDown, match=r"answers 401.*check PROMETHEUS_TOKEN") as raised:
        PrometheusMetrics(source(double.url, token_variable="PROMETHEUS_TOKEN")).window(since)
    assert "secret" not in str(raised.value)


def test_a_query_that_is_refused_is_the_configurations_fault(double):
    since = two_scrapes(double, served((1, 0, 0), (1, 0, 0)), served((9, 0, 0), (9, 0, 0)))
    with pytest.raises(ConfigError, match="refuses"):
        PrometheusMetrics(source(double.url, requests='requests_total{model="llm}')).window(since)
