"""Controllers that are killed or frozen over a real Envoy and live traffic, and the ones that come after them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import Phase
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SHORT = Patience(write=5, confirm=1, drain=3, blind_drain=0.3)


@pytest.mark.parametrize("phase", ["pending", "warm", "shifting", "shifting intent", "baking", "passed"])
def test_killed_in_any_phase_the_next_controller_finishes_the_step(site, phase: str) -> None:
    site.users(rate=40)
    killed = site.start_step(20, die_after=phase)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    before = site.record()
    assert site.step(20).verdict is Verdict.GO
    after = site.record()
    assert (after.phase, after.passed_percent) == (Phase.PASSED, 20.0)
    assert site.weights() == {"blue": 8_000, "green": 2_000}
    assert after.epoch >= before.epoch
    assert [mark.label for mark in after.marks].count("20 %") == 1
    assert site.users_go()["failed"] == 0


def test_killed_while_rolling_back_the_next_controller_finishes_the_rollback(site) -> None:
    site.users(rate=40)
    drill = {"failure_fraction": 1.0}
    killed = site.start_step(20, drill=drill, die_after="rolling back")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert site.step(20, drill=drill).verdict is Verdict.NO_GO
    assert site.record().phase is Phase.ROLLED_BACK
    assert site.weights() == {"blue": 10_000}
    assert site.users_go()["failed"] == 0


def test_a_resumed_bake_continues_the_same_tests(site) -> None:
    site.users(rate=40)
    killed = site.start_step(20, die_after="passed")
    killed.communicate(timeout=60)
    state = site.record().analysis
    site.step(20)
    assert site.record().analysis == state


def test_a_frozen_owner_is_fenced_when_it_wakes_up(site) -> None:
    site.users(rate=40)
    frozen = site.start_step(20, freeze_after="baking", lease_seconds=1.0)
    deadline = time.monotonic() + 30
    while os.waitpid(frozen.pid, os.WUNTRACED | os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    rolled_back = ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
    assert rolled_back is not None
    os.kill(frozen.pid, signal.SIGCONT)
    output, _ = frozen.communicate(timeout=30)
    assert frozen.returncode == 9, output
    assert output.startswith(("Fenced", "LeaseLost"))
    assert site.record().phase is Phase.ROLLED_BACK
    assert site.weights() == {"blue": 10_000}
    assert site.users_go()["failed"] == 0
