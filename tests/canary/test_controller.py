"""The controller over a real Envoy, real processes and live traffic."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import RouteState
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = pytest.mark.slow

SHORT = Patience(write=5, confirm=1, drain=3, blind_drain=0.3)


def test_a_good_candidate_takes_all_traffic_step_by_step_in_numbers_and_loses_no_request(site) -> None:
    site.users(rate=20)
    judgements = [site.step(20)]
    assert re.fullmatch(
        r"no regression at 20 %: \d+ candidate and \d+ stable requests, failures 0 and 0, "
        r"p95 first byte (\d+|-) and \d+ ms",
        judgements[0].summary,
    )
    (table,) = [event for event in site.events() if event.startswith("both versions:")]
    assert table.startswith("both versions:\n  | step 20 %, ")
    assert table.endswith(f"GO: {judgements[0].summary}")
    judgements += [site.step(percent) for percent in (50, 100)]
    assert [judgement.verdict for judgement in judgements] == [Verdict.GO] * 3
    assert "sample ratio" in [fact.name for fact in judgements[1].evidence]
    assert site.record().phase is Phase.PROMOTED
    assert site.weights() == {"green": 9_800, "blue": 200}, "until it is settled"
    assert site.control.alive("blue"), "the old version stays warm"
    assert site.users_go()["failed"] == 0


@pytest.mark.thorough
def test_a_slow_candidate_is_rolled_back_and_stopped_and_loses_no_request(site) -> None:
    site.users(rate=20)
    drill = {"delay_milliseconds": 400.0}
    verdicts = []
    for percent in (20, 50, 100):
        verdicts.append(site.step(percent, drill=drill).verdict)
        if verdicts[-1] is not Verdict.GO:
            break
    assert verdicts[-1] is Verdict.NO_GO
    assert site.record().phase is Phase.ROLLED_BACK
    assert site.weights() == {"blue": 10_000}
    assert not site.control.alive("green")
    assert site.users_go()["failed"] == 0


def test_a_failing_candidate_is_rolled_back_and_no_user_notices(site) -> None:
    site.users(rate=20)
    judgement = site.step(20, drill={"failure_fraction": 1.0})
    assert judgement.verdict is Verdict.NO_GO
    assert site.weights() == {"blue": 10_000}
    traffic = site.users_go()
    assert traffic["failed"] == 0, traffic


def test_a_candidate_killed_at_50_percent_is_rolled_back_and_loses_no_unary_request(site) -> None:
    site.users(rate=20)
    assert site.step(20).verdict is Verdict.GO
    running = site.start_step(50)
    while site.record().phase is not Phase.BAKING:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(site.control.pid("green"), signal.SIGKILL)
    output, _ = running.communicate(timeout=60)
    assert json.loads(output)["verdict"] == "NO_GO"
    assert site.weights() == {"blue": 10_000}
    traffic = site.users_go()
    assert [failure for failure in traffic["first_failures"] if not failure["streaming"]] == []
    assert traffic["failed"] <= 3, "only streams in flight at that moment can be cut"


@pytest.mark.thorough
def test_weights_changed_from_outside_pause_the_canary_and_are_not_overwritten(site) -> None:
    site.users(rate=20)
    assert site.step(20).verdict is Verdict.GO
    state, revision = site.router.read()
    by_hand = RouteState(weights={"blue": 7_000, "green": 3_000}, candidate="green", owner="alice", epoch=state.epoch)
    site.router.write(by_hand, revision)
    judgement = site.step(50)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "changed from outside" in judgement.summary
    assert site.record().phase is Phase.PAUSED
    assert site.weights() == {"blue": 7_000, "green": 3_000}
    state, revision = site.router.read()
    restored = {"weights": {"blue": 8_000, "green": 2_000}, "epoch": state.epoch}
    site.router.write(by_hand.model_copy(update=restored), revision)
    assert site.step(50).verdict is Verdict.GO, "once the drift is gone it goes on"


@pytest.mark.thorough
def test_an_idle_slot_that_carries_traffic_is_neither_replaced_nor_stopped(site) -> None:
    site.users(rate=20)
    site.control.ensure("green", None)
    pid, (state, revision) = site.control.pid("green"), site.router.read()
    site.router.write(RouteState(weights={"green": 10_000}, owner="unsettled", epoch=state.epoch), revision)
    assert site.step(20).verdict is Verdict.INCONCLUSIVE
    ensure_rolled_back(site.store, "r1", "cpu", router=site.router, slots=site.control, patience=SHORT)
    assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"green": 10_000})
    assert site.control.alive("green")
    assert site.control.pid("green") == pid
    assert site.users_go()["failed"] == 0


def test_the_first_deployment_takes_all_traffic_at_once(site) -> None:
    assert site.step(20, stable=None).verdict is Verdict.GO
    record = site.record()
    assert (record.candidate, record.stable, record.passed_percent) == ("blue", None, 100.0)
    assert site.step(50, stable=None).verdict is Verdict.GO
    assert site.weights() == {"blue": 10_000}


def test_without_traffic_the_canary_is_inconclusive_and_shifts_nothing(site) -> None:
    policy = {**json.loads(site.settings().read_text())["policy"], "maximum_bake_seconds": 2.0}
    judgement = site.step(20, policy=policy)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert site.record().phase is Phase.ROLLED_BACK
    assert not site.control.alive("green")


def test_a_step_that_is_not_the_next_one_is_refused(site) -> None:
    process = site.start_step(50)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 9
    assert "not the next one" in output
