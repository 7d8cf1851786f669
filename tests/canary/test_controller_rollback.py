"""Rollback on request over a real Envoy, real processes and live traffic."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest
from canary_site import FAST_POLICY

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import Phase
from llm_pipeline.operations.rollback import ensure_rolled_back

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
    deaf = type(site.router)(site.router.files, site.place.model_copy(update={"admin_port": 18569}), site.slots)
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
    assert [lost for lost in users["first_failures"] if not lost["streaming"]] == [], (
        "the candidate answered for stable"
    )
    assert users["failed"] <= 3, "streams that were in the killed server"
    assert users["sent"] == users["ok"] + users["failed"]


async def streams(url: str, count: int, tokens: int) -> list[tuple[str, bool]]:
    """Which server each of as many streams was answered by, and whether it came to its end."""

    async def one(session: aiohttp.ClientSession) -> tuple[str, bool]:
        asked = {"prompt": "a long one", "max_tokens": tokens, "stream": True}
        async with session.post(f"{url}/v1/completions", json=asked) as response:
            try:
                body = await response.text()
            except aiohttp.ClientError:
                body = ""
            return response.headers["x-served-by"], '"length"' in body

    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return list(await asyncio.gather(*(one(session) for _ in range(count))))


@pytest.mark.thorough
@pytest.mark.parametrize(("limit_seconds", "cut"), [(90.0, False), (4.0, True)])
def test_streams_of_20_seconds_are_waited_for_up_to_the_policy_s_limit_and_told_if_cut(
    site, limit_seconds: float, cut: bool
) -> None:
    site.users(rate=40)
    policy = {**FAST_POLICY, "drain_seconds": limit_seconds}
    assert site.step(20, policy=policy).verdict is Verdict.GO
    site.control.fault("green", token_milliseconds=500)
    site.users_go()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(asyncio.run, streams(site.url, count=40, tokens=40))
        time.sleep(2.0)
        patience = Patience(write=5, confirm=3)
        ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=patience)
        answered = sent.result()
    theirs = [whole for served_by, whole in answered if served_by == "green"]
    assert len(theirs) > 1
    assert all(whole for served_by, whole in answered if served_by == "blue")
    assert theirs.count(False) == (len(theirs) if cut else 0), answered
    told = f"; {len(theirs)} requests still in flight were cut after 4 s" if cut else ""
    assert site.record().events[-1].summary == f"all traffic is on stable{told}"
