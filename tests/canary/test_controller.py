"""The controller over a real Envoy, real processes and live traffic."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.rollback import Patience, ensure_rolled_back
from llm_pipeline.canary.router import RouteState, all_to
from llm_pipeline.verdict import Verdict

pytestmark = pytest.mark.slow

SHORT = Patience(write=5, confirm=1, drain=3, blind_drain=0.3)


def test_a_good_candidate_takes_all_traffic_step_by_step_and_loses_no_request(site) -> None:
    site.users(rate=40)
    judgements = [site.step(percent) for percent in (5, 25, 50, 100)]
    assert [judgement.verdict for judgement in judgements] == [Verdict.GO] * 4
    assert "sample ratio" in [fact.name for fact in judgements[1].evidence]
    assert site.record().phase is Phase.PROMOTED
    assert site.weights() == {"green": 10_000}
    assert site.control.alive("blue"), "the old version stays warm"
    assert site.users_go()["failed"] == 0


def test_the_evidence_says_that_a_small_step_saw_no_regression_and_did_not_prove_parity(site) -> None:
    site.users(rate=40)
    errors = next(fact for fact in site.step(5).evidence if fact.name == "errors")
    assert "parity not proven" in errors.detail


def test_a_slow_candidate_is_rolled_back_and_stopped_and_loses_no_request(site) -> None:
    site.users(rate=40)
    drill = {"delay_milliseconds": 400.0}
    verdicts = []
    for percent in (5, 25, 50, 100):
        verdicts.append(site.step(percent, drill=drill).verdict)
        if verdicts[-1] is not Verdict.GO:
            break
    assert verdicts[-1] is Verdict.NO_GO
    assert site.record().phase is Phase.ROLLED_BACK
    assert site.weights() == {"blue": 10_000}
    assert not site.control.alive("green")
    assert site.users_go()["failed"] == 0


def test_a_failing_candidate_is_rolled_back_and_no_user_notices(site) -> None:
    site.users(rate=40)
    judgement = site.step(5, drill={"failure_fraction": 1.0})
    assert judgement.verdict is Verdict.NO_GO
    assert site.weights() == {"blue": 10_000}
    traffic = site.users_go()
    assert traffic["failed"] == 0, traffic


def test_a_candidate_killed_at_50_percent_is_rolled_back_and_loses_no_unary_request(site) -> None:
    site.users(rate=40)
    assert site.step(5).verdict is site.step(25).verdict is Verdict.GO
    running = site.start_step(50)
    while site.record().phase is not Phase.BAKING:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(site.control.pid("green"), signal.SIGKILL)
    output, _ = running.communicate(timeout=60)
    assert json.loads(output)["verdict"] == "NO_GO"
    assert site.weights() == {"blue": 10_000}
    traffic = site.users_go()
    assert all(failure["streaming"] for failure in traffic["first_failures"]), traffic
    assert traffic["failed"] <= 3, "only streams in flight at that moment can be cut"


@pytest.mark.parametrize("phase", ["pending", "warm", "shifting", "shifting intent", "baking", "passed"])
def test_killed_in_any_phase_the_next_controller_finishes_the_step(site, phase: str) -> None:
    site.users(rate=40)
    killed = site.start_step(5, die_after=phase)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    before = site.record()
    assert site.step(5).verdict is Verdict.GO
    after = site.record()
    assert (after.phase, after.passed_percent) == (Phase.PASSED, 5.0)
    assert site.weights() == {"blue": 9_500, "green": 500}
    assert after.epoch >= before.epoch
    assert [mark.label for mark in after.marks].count("5 %") == 1
    assert site.users_go()["failed"] == 0


def test_killed_while_rolling_back_the_next_controller_finishes_the_rollback(site) -> None:
    site.users(rate=40)
    drill = {"failure_fraction": 1.0}
    killed = site.start_step(5, drill=drill, die_after="rolling back")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert site.step(5, drill=drill).verdict is Verdict.NO_GO
    assert site.record().phase is Phase.ROLLED_BACK
    assert site.weights() == {"blue": 10_000}
    assert site.users_go()["failed"] == 0


def test_a_resumed_bake_continues_the_same_tests(site) -> None:
    site.users(rate=40)
    killed = site.start_step(5, die_after="passed")
    killed.communicate(timeout=60)
    state = site.record().analysis
    site.step(5)
    assert site.record().analysis == state


def test_a_frozen_owner_is_fenced_when_it_wakes_up(site) -> None:
    site.users(rate=40)
    frozen = site.start_step(5, freeze_after="baking", lease_seconds=1.0)
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


def test_weights_changed_from_outside_pause_the_canary_and_are_not_overwritten(site) -> None:
    site.users(rate=40)
    assert site.step(5).verdict is Verdict.GO
    state, revision = site.router.read()
    by_hand = RouteState(weights={"blue": 7_000, "green": 3_000}, candidate="green", owner="alice", epoch=state.epoch)
    site.router.write(by_hand, revision)
    judgement = site.step(25)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "changed from outside" in judgement.summary
    assert site.record().phase is Phase.PAUSED
    assert site.weights() == {"blue": 7_000, "green": 3_000}
    state, revision = site.router.read()
    site.router.write(by_hand.model_copy(update={"weights": {"blue": 9_500, "green": 500}}), revision)
    assert site.step(25).verdict is Verdict.GO, "once the drift is gone it goes on"


def test_an_idle_slot_that_carries_traffic_is_neither_replaced_nor_stopped(site) -> None:
    site.users(rate=40)
    site.control.ensure("green", None)
    pid, (state, revision) = site.control.pid("green"), site.router.read()
    site.router.write(RouteState(weights={"green": 10_000}, owner="unsettled", epoch=state.epoch), revision)
    assert site.step(5).verdict is Verdict.INCONCLUSIVE
    ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
    assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"green": 10_000})
    assert site.control.alive("green")
    assert site.control.pid("green") == pid
    assert site.users_go()["failed"] == 0


def test_a_rollback_may_be_asked_for_twice(site) -> None:
    site.users(rate=40)
    site.step(5)
    for _ in range(2):
        record = ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
        assert record is not None
        assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, True)
    assert site.weights() == {"blue": 10_000}
    assert not site.control.alive("green")
    assert site.users_go()["failed"] == 0


def test_a_canary_that_was_rolled_back_on_request_says_go_to_nothing_more(site) -> None:
    site.users(rate=40)
    assert site.step(5).verdict is Verdict.GO
    ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
    for percent in (5, 25):
        judgement = site.step(percent)
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert judgement.summary == "rolled back on request at 5 %"
    assert site.weights() == {"blue": 10_000}
    assert site.users_go()["failed"] == 0


def test_a_rollback_needs_no_admin_interface(site) -> None:
    site.users(rate=40)
    site.step(5)
    deaf = type(site.router)(
        site.router_state, site.place.model_copy(update={"admin_port": 18569}), site.slots, admin_timeout_seconds=0.2
    )
    record = ensure_rolled_back(site.store, "r1", "cpu", router=deaf, slots=site.control, patience=SHORT)
    assert record is not None
    assert (record.phase, record.traffic_confirmed) == (Phase.ROLLED_BACK, False)
    assert site.weights() == {"blue": 10_000}
    assert site.users_go()["failed"] == 0


def test_a_promoted_release_is_not_rolled_back(site) -> None:
    record = first_deployment(site)
    assert record.phase is Phase.PROMOTED
    again = ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
    assert again == record
    assert site.control.alive("blue")


def test_the_first_deployment_takes_all_traffic_at_once(site) -> None:
    record = first_deployment(site)
    assert (record.candidate, record.stable, record.passed_percent) == ("blue", None, 100.0)
    assert site.step(25, stable=None).verdict is Verdict.GO
    assert site.weights() == {"blue": 10_000}


def test_without_traffic_the_canary_is_inconclusive_and_shifts_nothing(site) -> None:
    policy = {**json.loads(site.settings().read_text())["policy"], "maximum_bake_seconds": 2.0}
    judgement = site.step(5, policy=policy)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert site.record().phase is Phase.ROLLED_BACK
    assert not site.control.alive("green")


def test_a_step_that_is_not_the_next_one_is_refused(site) -> None:
    process = site.start_step(50)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 9
    assert "not the next one" in output


def first_deployment(site):
    assert site.step(5, stable=None).verdict is Verdict.GO
    return site.record()


def test_a_retry_within_the_run_returns_the_recorded_judgement_and_the_next_run_tries_again(site) -> None:
    site.users(rate=40)
    refused = site.step(5, drill={"failure_fraction": 1.0})
    assert refused.verdict is Verdict.NO_GO
    began = site.record().began_at
    assert site.step(5) == refused, "the same run does not try twice"
    assert site.record().began_at == began

    skipped = site.start_step(25, run="second run")
    assert "not the next one" in skipped.communicate(timeout=30)[0]
    assert (site.record().run, site.record().phase) == ("first run", Phase.ROLLED_BACK)

    assert site.step(5, run="second run").verdict is Verdict.GO
    record = site.record()
    assert (record.run, record.phase, record.passed_percent) == ("second run", Phase.PASSED, 5.0)
    earlier = record.history[0]
    assert (earlier.run, earlier.phase, earlier.verdict) == ("first run", Phase.ROLLED_BACK, Verdict.NO_GO)
    assert earlier.summary == refused.summary
    assert site.users_go()["failed"] == 0


def test_a_run_that_died_rolling_back_is_rolled_back_before_the_next_run_tries_again(site) -> None:
    site.users(rate=40)
    killed = site.start_step(5, drill={"failure_fraction": 1.0}, die_after="rolling back")
    killed.communicate(timeout=60)
    assert site.step(5, run="second run").verdict is Verdict.GO
    record = site.record()
    assert [(attempt.run, attempt.phase) for attempt in record.history] == [("first run", Phase.ROLLED_BACK)]
    assert site.weights() == {"blue": 9_500, "green": 500}
    assert site.users_go()["failed"] == 0


def test_a_promotion_stands_for_the_next_run_until_production_moves_past_it(site) -> None:
    site.users(rate=40)
    policy = {**json.loads(site.settings().read_text())["policy"], "steps_percent": [50, 100]}
    judgements = [site.step(percent, policy=policy) for percent in (50, 100)]
    assert site.record().phase is Phase.PROMOTED
    assert site.step(50, policy=policy, run="second run") == judgements[-1], "not settled yet: nothing to try again"
    assert site.weights() == {"green": 10_000}

    state, _ = site.router.read()
    site.router.write(all_to("blue", owner="rollback to before", epoch=state.epoch + 1), None)
    moved = {"policy": policy, "run": "third run", "promoted_at": "2026-01-02T00:00:00+00:00"}
    assert site.step(50, **moved).verdict is Verdict.GO
    record = site.record()
    assert (record.phase, record.passed_percent) == (Phase.PASSED, 50.0)
    assert [attempt.phase for attempt in record.history] == [Phase.PROMOTED]
    assert site.users_go()["failed"] == 0


def test_the_judgement_is_told_in_numbers_and_the_log_shows_one_table(site) -> None:
    site.users(rate=40)
    judgement = site.step(5)
    assert re.fullmatch(
        r"no regression at 5 %: \d+ candidate and \d+ stable requests, errors 0 and 0, "
        r"p95 first byte (\d+|-) and \d+ ms",
        judgement.summary,
    )
    tables = [event for event in site.events() if event.startswith("\n")]
    assert len(tables) == 1
    assert tables[0].startswith("\nstep 5 %, ")
    assert tables[0].endswith(f"GO: {judgement.summary}")
