"""Rollback on request over a real Envoy, real processes and live traffic."""

from __future__ import annotations

import os
import signal

import pytest

from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import Patience
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = pytest.mark.slow

SHORT = Patience(write=5, confirm=1, drain=3, blind_drain=0.3)


def test_a_rollback_needs_no_admin_interface(site) -> None:
    site.users(rate=40)
    site.step(20)
    deaf = type(site.router)(site.router.files, site.place.model_copy(update={"admin_port": 18569}), site.slots)
    record = ensure_rolled_back(ServedPlace(site.store, "", "cpu", deaf, site.control, SHORT), "r1")
    assert record is not None
    assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, False)
    assert site.weights() == {"blue": 10_000}
    assert site.users_go()["failed"] == 0


@pytest.mark.thorough
def test_stable_is_started_before_traffic_goes_back_to_it_and_the_server_that_answered_meanwhile_lost_nothing(
    site,
) -> None:
    site.users(rate=40)
    site.step(20)
    os.kill(site.control.pid("blue"), signal.SIGKILL)
    site.await_sent(40)
    record = ensure_rolled_back(ServedPlace(site.store, "", "cpu", site.router, site.control, SHORT), "r1")
    assert record is not None
    assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, True)
    site.await_sent(40)
    assert (site.weights(), site.control.alive("blue"), site.control.alive("green")) == ({"blue": 10_000}, True, False)
    users = site.users_go()
    assert [lost for lost in users["first_failures"] if not lost["streaming"]] == [], (
        "the candidate answered for stable"
    )
    assert users["failed"] <= 3, "streams that were in the killed server"
    assert users["sent"] == users["ok"] + users["failed"]
