"""What others do to a canary under way: people, newer releases, a second controller, a router that does not obey."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from live_site import SHORT

from llm_pipeline.base.errors import Fenced, PipelineError, Transient
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase, take_over
from llm_pipeline.canary.router import ALL, RouterRejected, RouterUnavailable, RouteState
from llm_pipeline.operations.rollback import ensure_rolled_back
from llm_pipeline.store.lease import LeaseLost
from llm_pipeline.store.place_state import read_place

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


class Disobedient:
    """The real router, but for one thing that it does not do."""

    def __init__(self, router, fault: str) -> None:
        self.router = router
        self.fault = fault

    def __getattr__(self, name):
        return getattr(self.router, name)

    def read(self):
        if self.fault == "unreachable":
            raise RouterUnavailable("connection refused")
        return self.router.read()

    def write(self, want: RouteState, expect):
        if want.candidate is None:
            return self.router.write(want, expect)
        if self.fault == "write fails":
            raise RouterUnavailable("connection reset")
        return "0:0:nowhere" if self.fault == "not applied" else self.router.write(want, expect)

    def converged(self, revision):
        on_trial = self.router.read()[0].candidate is not None
        if self.fault == "refused" and on_trial:
            raise RouterRejected("no such cluster")
        return False if self.fault == "slow to apply" and on_trial else self.router.converged(revision)


def is_back_on_stable(trial) -> bool:
    return trial.record.phase is Phase.ROLLED_BACK and trial.site.weights() == {trial.stable: ALL}


@pytest.mark.parametrize("phase", [Phase.SHIFTING, Phase.BAKING])
def test_a_rollback_asked_for_in_a_step_fences_the_controller_and_loses_nothing(trial, phase) -> None:
    trial.policy |= {"steps_percent": (25.0, 100.0), "minimum_bake_seconds": 10.0}
    if phase is Phase.SHIFTING:
        trial.router = Disobedient(trial.site.router, "slow to apply")
    running = trial.start(25)
    trial.await_phase(phase, 25)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(trial.roll_back) for _ in range(2)]  # and twice at once
    assert [one for one in asked if one.exception() is None]
    assert all(isinstance(one.exception(), Transient | None) for one in asked), asked
    with pytest.raises((Fenced, LeaseLost)):
        running.result(timeout=80)
    assert is_back_on_stable(trial)
    assert trial.events[-2:] == ["rolling back", "rolled back"]
    assert trial.lost == {}


def test_a_newer_release_takes_the_canary_of_the_older_one_back_and_begins_at_its_own_first_step(trial) -> None:
    trial.policy["steps_percent"] = (50.0, 100.0)
    trial.reach(50)
    newer = trial.site.begin_trial()
    newer.policy["steps_percent"] = (25.0, 100.0)
    try:
        assert newer.step(25).verdict is Verdict.GO
        assert trial.record.phase is Phase.ROLLED_BACK
        assert newer.record.phase is Phase.PASSED
        assert newer.site.weights() == {newer.stable: ALL - 2500, newer.candidate: 2500}
        assert newer.release_id in trial.record.events[-2].summary
    finally:
        newer.end()
    assert trial.lost == {}


def test_a_controller_that_freezes_is_replaced_and_when_it_wakes_up_it_can_do_nothing(trial) -> None:
    trial.policy |= {"steps_percent": (25.0, 100.0)}
    site = trial.site
    settings = {"release_id": trial.release_id, "policy": trial.policy, "stable": trial.stable, "grpc": True}
    frozen = site.start_step(25, freeze_after="baking", lease_seconds=0.5, **settings)
    os.waitpid(frozen.pid, os.WUNTRACED)
    time.sleep(0.6)
    assert trial.step(25).verdict is Verdict.GO
    after = trial.record
    os.kill(frozen.pid, signal.SIGCONT)
    output, _ = frozen.communicate(timeout=30)
    assert output.startswith(("Fenced", "LeaseLost"))
    assert trial.record == after
    assert site.weights() == {trial.stable: ALL - 2500, trial.candidate: 2500}
    assert trial.lost == {}


def test_a_controller_frozen_in_its_drain_stops_nothing_of_the_newer_release_when_it_wakes_up(trial) -> None:
    site = trial.site
    trial.policy["steps_percent"] = (25.0, 100.0)
    settings = {"release_id": trial.release_id, "policy": trial.policy, "stable": trial.stable, "grpc": True}
    drill = {"failure_fraction": 1.0}
    if earlier := read_place(site.store, "cpu").on_trial:  # it would be ended first, in a drain of its own
        ensure_rolled_back(site.store, earlier, "cpu", router=site.router, slots=site.control, patience=SHORT)
    frozen = site.start_step(25, freeze_before_stop=True, drill=drill, lease_seconds=30.0, **settings)
    os.waitpid(frozen.pid, os.WUNTRACED)
    take_over(site.store, "cpu")  # its lease has expired
    newer = site.begin_trial()
    newer.policy["steps_percent"] = (50.0, 100.0)
    try:
        newer.reach(50, 100)
        serving = site.control.pid(newer.candidate)
        os.kill(frozen.pid, signal.SIGCONT)
        output, _ = frozen.communicate(timeout=30)
        assert output.startswith("Fenced"), output
        site.await_answers(100)
        assert (site.control.pid(newer.candidate), site.control.alive(newer.candidate)) == (serving, True)
        assert site.weights() == {newer.candidate: 9_800, newer.stable: 200}
        assert trial.record.phase is Phase.ROLLED_BACK
        assert newer.lost == {}
    finally:
        newer.end()


@pytest.mark.parametrize("fault", ["refused", "not applied"])
def test_a_router_that_does_not_take_the_weights_ends_the_canary_without_a_word_about_the_candidate(
    trial, fault
) -> None:
    trial.router = Disobedient(trial.site.router, fault)
    assert trial.step(1).verdict is Verdict.INCONCLUSIVE
    assert is_back_on_stable(trial)
    assert trial.lost == {}


def test_a_router_that_cannot_be_reached_is_tried_again_and_the_step_goes_on_where_it_was(trial) -> None:
    trial.policy["steps_percent"] = (50.0, 100.0)
    trial.router = Disobedient(trial.site.router, "write fails")
    with pytest.raises(RouterUnavailable):
        trial.step(50)
    assert trial.record.phase is Phase.SHIFTING
    assert trial.site.weights() == {trial.stable: ALL}
    trial.router.fault = ""
    running = trial.start(50)
    shifted = trial.await_phase(Phase.BAKING, 50)
    trial.router.fault = "unreachable"
    with pytest.raises(PipelineError):
        running.result(timeout=80)
    trial.router.fault = ""
    assert trial.step(50).verdict is Verdict.GO
    assert trial.record.step_began_at == shifted.step_began_at
    assert trial.lost == {}
