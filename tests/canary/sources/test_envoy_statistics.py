"""Counts from the statistics of a real Envoy: fail-over hides nothing."""

from __future__ import annotations

import time

import pytest
from test_envoy import ask, both_up, shift, split

from llm_pipeline.adapters.envoy.process import stop_router
from llm_pipeline.adapters.envoy.statistics import EnvoyStatistics
from llm_pipeline.canary.arm_metrics import SourceDown
from llm_pipeline.canary.router import Mirror, all_to

pytestmark = pytest.mark.slow


def counts(metrics: EnvoyStatistics, since) -> dict[str, tuple[int, int, int]]:
    arms = metrics.window(since).arms
    return {slot: (arm.requests, arm.errors, arm.lost) for slot, arm in arms.items()}


def test_a_candidates_failures_are_its_own_though_no_user_saw_them(site) -> None:
    both_up(site, {"failure_fraction": 1.0})
    shift(site, split(50))
    metrics = EnvoyStatistics(site.router)
    since = metrics.begin()
    assert {status for status, _, _ in ask(site, 200)} == {200}
    found = metrics.window(since)
    green, blue = found.arms["green"], found.arms["blue"]
    assert green.requests + blue.requests == 200, "an attempt is no request"
    assert 70 < green.requests < 130
    assert (green.errors, green.lost, blue.errors) == (green.requests, 0, 0)
    assert counts(metrics, found.cursor) == {"blue": (0, 0, 0), "green": (0, 0, 0)}, "windows tile"


def test_requests_that_went_past_a_dead_candidate_are_its_errors_too(site) -> None:
    both_up(site)
    shift(site, split(50))
    metrics = EnvoyStatistics(site.router)
    since = metrics.begin()
    ask(site, 50)
    healthy = counts(metrics, since)
    assert (healthy["green"][1:], healthy["blue"][1:]) == ((0, 0), (0, 0))
    site.control.stop("green")
    deadline = time.monotonic() + 60
    while site.router.usable("green"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    since = metrics.begin()
    assert {status for status, _, _ in ask(site, 100)} == {200}
    green = counts(metrics, since)["green"]
    assert green == (green[0], green[0], 0)
    assert green[0] > 20


def test_what_the_candidate_answered_for_a_dead_stable_is_stables_error(site) -> None:
    both_up(site)
    shift(site, split(50))
    metrics = EnvoyStatistics(site.router)
    since = metrics.begin()
    site.control.stop("blue")
    assert {(status, server) for status, server, _ in ask(site, 100)} == {(200, "green")}
    found = counts(metrics, since)
    assert sum(requests for requests, _, _ in found.values()) == 100
    assert found["blue"] == (found["blue"][0], found["blue"][0], 0)
    assert found["blue"][0] > 20
    assert found["green"][1:] == (0, 0)


def test_what_users_lose_is_an_error_of_the_arm_that_lost_it(site) -> None:
    site.control.stop("blue")
    metrics = EnvoyStatistics(site.router)
    since = metrics.begin()
    assert {status for status, _, _ in ask(site, 5)} == {503}
    assert counts(metrics, since) == {"blue": (5, 5, 5), "green": (0, 0, 0)}


def test_copies_are_no_requests(site) -> None:
    both_up(site, {"failure_fraction": 1.0})
    state = all_to("blue", owner="t", epoch=3)
    shift(site, state.model_copy(update={"mirror": Mirror(slot="green", share=10_000)}))
    metrics = EnvoyStatistics(site.router)
    since = metrics.begin()
    ask(site, 40)
    assert counts(metrics, since) == {"blue": (40, 0, 0), "green": (0, 0, 0)}


def test_after_a_restart_counting_begins_anew_and_without_envoy_nothing_is_counted(site) -> None:
    metrics = EnvoyStatistics(site.router)
    since = metrics.begin()
    ask(site, 30)
    cursor = metrics.window(since).cursor
    stop_router(site.router_state)
    with pytest.raises(SourceDown, match="does not answer"):
        metrics.window(cursor)
    site.start_router()
    ask(site, 20)
    assert counts(metrics, cursor)["blue"] == (20, 0, 0)
