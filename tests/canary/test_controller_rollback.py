"""Rollback on request over a real Envoy, real processes and live traffic."""

from __future__ import annotations

import os
import signal

import pytest

from llm_pipeline.canary.moving import Patience
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.rollback import ensure_rolled_back
from llm_pipeline.verdict import Verdict

pytestmark = pytest.mark.slow

SHORT = Patience(write=5, confirm=1, drain=3, blind_drain=0.3)


def test_a_rollback_may_be_asked_for_twice(site) -> None:
    site.users(rate=40)
    site.step(20)
    for _ in range(2):
        record = ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
        assert record is not None
        assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, True)
    assert site.weights() == {"blue": 10_000}
    assert not site.control.alive("green")
    assert site.users_go()["failed"] == 0


def test_a_canary_that_was_rolled_back_on_request_says_go_to_nothing_more(site) -> None:
    site.users(rate=40)
    assert site.step(20).verdict is Verdict.GO
    ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
    for percent in (20, 50):
        judgement = site.step(percent)
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert judgement.summary == "rolled back on request at 20 %"
    assert site.weights() == {"blue": 10_000}
    assert site.users_go()["failed"] == 0


def test_a_rollback_needs_no_admin_interface(site) -> None:
    site.users(rate=40)
    site.step(20)
    deaf = type(site.router)(
        site.router.files, site.place.model_copy(update={"admin_port": 18569}), site.slots, admin_timeout_seconds=0.2
    )
    record = ensure_rolled_back(site.store, "r1", "cpu", router=deaf, slots=site.control, patience=SHORT)
    assert record is not None
    assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, False)
    assert site.weights() == {"blue": 10_000}
    assert site.users_go()["failed"] == 0


def test_a_promoted_release_is_not_rolled_back(site) -> None:
    assert site.step(20, stable=None).verdict is Verdict.GO
    record = site.record()
    assert record.phase is Phase.PROMOTED
    again = ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
    assert again == record
    assert site.control.alive("blue")


@pytest.mark.thorough
def test_stable_is_started_before_traffic_goes_back_to_it_and_the_server_that_answered_meanwhile_lost_nothing(
    site,
) -> None:
    site.users(rate=40)
    site.step(20)
    os.kill(site.control.pid("blue"), signal.SIGKILL)
    site.await_sent(40)
    record = ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
    assert record is not None
    assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, True)
    site.await_sent(40)
    assert (site.weights(), site.control.alive("blue"), site.control.alive("green")) == ({"blue": 10_000}, True, False)
    users = site.users_go()
    assert users["failed"] == 0, users
    assert users["sent"] == users["ok"]
