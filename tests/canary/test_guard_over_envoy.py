"""The guard over a real Envoy and live users: a full store, wrong clocks, dead servers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from canary_site import FAST_POLICY, STABLE, Site
from place_here import serve

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import Phase
from llm_pipeline.operations.guard import GuardAction, GuardedSite
from llm_pipeline.store.place_state import Pointer

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

MODEL = "demo/tiny"
SHORT = Patience(write=5, confirm=3, prove=10, drain=3, blind_drain=0.3)


@pytest.fixture
def full_disk(tmp_path: Path, site: Site) -> Iterator[Path]:
    """A small disk of its own for the store."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    site.store = LocalStore(f"file://{disk}/store")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def guard(site: Site, *, clock_is_off: float = 0.0, after: float = 0.0) -> list[GuardAction]:
    guarded = GuardedSite(
        store=site.store, target="cpu", router=site.router, slots=site.control, patience=SHORT, watch_seconds=3.0
    )
    here = HostTime.now()
    now = HostTime(here.boot, here.up_seconds + after, here.wall + after + clock_is_off)
    return guarded.guard(now)


def killed_while_it_bakes(site: Site, **settings: object) -> None:
    killed = site.start_step(20, die_after="baking", **settings)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert site.weights() == {"blue": 8_000, "green": 2_000}


def await_weights(site: Site, weights: dict[str, int]) -> None:
    deadline = time.monotonic() + 60
    while site.weights() != weights:
        assert time.monotonic() < deadline, site.weights()
        time.sleep(0.1)


def assert_nothing_lost(site: Site) -> None:
    users = site.users_go()
    assert users["failed"] == 0, users
    assert users["sent"] == users["ok"] > 0


def test_a_full_store_keeps_no_traffic_on_a_failing_candidate(site, full_disk) -> None:
    site.users(rate=40)
    killed_while_it_bakes(site, drill={"failure_fraction": 1.0})
    site.await_sent(80)
    ballast = full_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(b"0" * 4_000_000)
    (action,) = guard(site)
    assert action.what == "failed"
    assert "all traffic was sent to stable, and nothing could be recorded" in action.detail
    assert (site.weights(), site.record().phase) == ({"blue": 10_000}, Phase.BAKING)
    ballast.unlink()
    assert guard(site)[0].what == "rolled back"
    assert (site.record().phase, site.control.alive("green")) == (Phase.ROLLED_BACK, False)
    assert_nothing_lost(site)


def test_a_controller_that_can_write_nothing_down_takes_a_failing_candidate_s_traffic_by_itself(
    site, full_disk
) -> None:
    site.users(rate=40)
    step = site.start_step(20, policy={**FAST_POLICY, "minimum_bake_seconds": 60.0, "maximum_bake_seconds": 90.0})
    await_weights(site, {"blue": 8_000, "green": 2_000})
    site.await_sent(40)
    assert site.record().phase is Phase.BAKING
    ballast = full_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(b"0" * 4_000_000)
    site.await_sent(60)
    assert step.poll() is None, "it watches on"
    site.control.fault("green", failure_fraction=1.0)
    await_weights(site, {"blue": 10_000})
    output, _ = step.communicate(timeout=60)
    assert "No space left" in output + site.step_log.read_text()
    ballast.unlink()
    assert guard(site)[0].what == "rolled back"
    assert (site.record().phase, site.control.alive("green")) == (Phase.ROLLED_BACK, False)
    assert_nothing_lost(site)


@pytest.mark.parametrize("clock_is_off", [-130.0, 4000.0])
def test_a_guard_with_a_wrong_clock_leaves_a_healthy_canary_to_its_controller(site, clock_is_off: float) -> None:
    site.users(rate=40)
    policy = {**FAST_POLICY, "minimum_bake_seconds": 8.0}
    step = site.start_step(20, policy=policy)
    await_weights(site, {"blue": 8_000, "green": 2_000})
    for after in (0.0, 1000.0):
        assert guard(site, clock_is_off=clock_is_off, after=after) == []
    output, _ = step.communicate(timeout=60)
    assert step.returncode == Verdict.GO.exit_code, output + site.step_log.read_text()
    assert guard(site, clock_is_off=clock_is_off) == [], "nor between two steps"
    assert site.weights() == {"blue": 8_000, "green": 2_000}
    assert_nothing_lost(site)


def test_stable_killed_and_nobody_there_the_guard_starts_it_before_it_gets_the_traffic(site) -> None:
    site.users(rate=40)
    killed_while_it_bakes(site)
    assert guard(site) == []
    os.kill(site.control.pid("blue"), signal.SIGKILL)
    site.await_sent(40)
    assert [action.what for action in guard(site, after=400.0)] == ["rolled back"]
    assert (site.weights(), site.control.alive("blue"), site.control.alive("green")) == ({"blue": 10_000}, True, False)
    site.await_sent(40)
    users = site.users_go()
    assert [lost for lost in users["first_failures"] if not lost["streaming"]] == [], (
        "the candidate answered for stable"
    )
    assert users["failed"] <= 3, "streams that were in the killed server"
    assert users["sent"] == users["ok"] + users["failed"]


def test_both_killed_and_nobody_there_the_guard_starts_stable(site) -> None:
    site.users(rate=40)
    killed_while_it_bakes(site)
    for slot in ("blue", "green"):
        os.kill(site.control.pid(slot), signal.SIGKILL)
    assert [action.what for action in guard(site)] == ["rolled back"]
    assert (site.weights(), site.control.alive("blue")) == ({"blue": 10_000}, True)
    lost = site.traffic()["failed"]
    site.await_sent(40)
    users = site.users_go()
    assert users["failed"] - lost <= 3, "only what was in flight as both were dead"


def test_a_production_that_crashed_is_started_with_its_router(site) -> None:
    serves = Pointer(release_id="before", repository=STABLE, slot="blue", recipe="none", promoted_at=datetime.now(UTC))
    serve(site.store, MODEL, "cpu", serves)
    os.kill(site.control.pid("blue"), signal.SIGKILL)
    (action,) = guard(site)
    assert (action.what, action.release_id) == ("started", "before")
    site.users(rate=40)
    assert_nothing_lost(site)
