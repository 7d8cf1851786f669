"""Requests in flight end before their server is stopped, up to the policy's limit; those that are cut are counted."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from simulated import PATIENCE, Site

from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import Patience
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = pytest.mark.usefixtures("fast")

BY_POLICY = Patience(write=0.1, confirm=0.1, prove=0.02, usable=0.1, blind_drain=0.05)


@pytest.fixture
def site(tmp_path) -> Site:
    place = Site(tmp_path)
    place.policy["drain_seconds"] = 20.0
    return place


def roll_back(site: Site, patience: Patience = BY_POLICY) -> str:
    """What the canary's last event says."""
    ensure_rolled_back(replace(site.place, patience=patience), "r1")
    record = site.record()
    assert (record.phase, site.weights(), site.running) == (Phase.ROLLED_BACK, {"blue": 10_000}, {"blue"})
    return record.events[-1].summary


def test_streams_that_end_within_the_policy_s_limit_are_all_waited_for(site) -> None:
    assert site.step(20).verdict == "GO"
    site.in_flight["green"] = 13
    ended = threading.Timer(0.6, site.in_flight.clear)
    began = time.monotonic()
    ended.start()
    assert roll_back(site) == "all traffic is on stable"
    assert time.monotonic() - began > 0.5


def test_what_is_still_in_flight_at_the_policy_s_limit_is_cut_and_counted(site) -> None:
    site.policy["drain_seconds"] = 0.2
    assert site.step(20).verdict == "GO"
    site.in_flight["green"] = 13
    assert roll_back(site) == "all traffic is on stable; 13 requests still in flight were cut after 0.2 s"


def test_a_router_that_does_not_tell_leaves_it_to_the_server(site, monkeypatch) -> None:
    assert site.step(20).verdict == "GO"
    site.in_flight["green"] = 2
    monkeypatch.setattr(site.router, "active_requests", lambda _: None)
    assert roll_back(site, PATIENCE).endswith("2 requests still in flight were cut after 0.1 s")


def test_where_nobody_tells_the_time_is_bounded_too(site, monkeypatch) -> None:
    assert site.step(20).verdict == "GO"
    monkeypatch.setattr(site.router, "active_requests", lambda _: None)
    monkeypatch.setattr(site.slots, "in_flight", lambda _: None)
    assert roll_back(site) == "all traffic is on stable"
