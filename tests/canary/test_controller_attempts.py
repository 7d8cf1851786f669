"""Runs that follow each other with one release, over a real Envoy, real processes and live traffic."""

from __future__ import annotations

import json

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import all_to

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_a_retry_within_the_run_returns_the_recorded_judgement_and_the_next_run_tries_again(site) -> None:
    site.users(rate=40)
    refused = site.step(20, drill={"failure_fraction": 1.0})
    assert refused.verdict is Verdict.NO_GO
    began = site.record().began_at
    assert site.step(20) == refused, "the same run does not try twice"
    assert site.record().began_at == began

    skipped = site.start_step(50, run="second run")
    assert "not the next one" in skipped.communicate(timeout=30)[0]
    assert (site.record().run, site.record().phase) == ("first run", Phase.ROLLED_BACK)

    assert site.step(20, run="second run").verdict is Verdict.GO
    record = site.record()
    assert (record.run, record.phase, record.passed_percent) == ("second run", Phase.PASSED, 20.0)
    earlier = record.history[0]
    assert (earlier.run, earlier.phase, earlier.verdict) == ("first run", Phase.ROLLED_BACK, Verdict.NO_GO)
    assert earlier.summary == refused.summary
    assert site.users_go()["failed"] == 0


def test_a_run_that_died_rolling_back_is_rolled_back_before_the_next_run_tries_again(site) -> None:
    site.users(rate=40)
    killed = site.start_step(20, drill={"failure_fraction": 1.0}, die_after="rolling back")
    killed.communicate(timeout=60)
    assert site.step(20, run="second run").verdict is Verdict.GO
    record = site.record()
    assert [(attempt.run, attempt.phase) for attempt in record.history] == [("first run", Phase.ROLLED_BACK)]
    assert site.weights() == {"blue": 8_000, "green": 2_000}
    assert site.users_go()["failed"] == 0


def test_a_promotion_stands_for_the_next_run_until_production_moves_past_it(site) -> None:
    site.users(rate=40)
    policy = {**json.loads(site.settings().read_text())["policy"], "steps_percent": [50, 100]}
    judgements = [site.step(percent, policy=policy) for percent in (50, 100)]
    assert site.record().phase is Phase.PROMOTED
    assert site.step(50, policy=policy, run="second run") == judgements[-1], "not settled yet: nothing to try again"
    assert site.weights() == {"green": 9_800, "blue": 200}

    state, _ = site.router.read()
    site.router.write(all_to("blue", owner="rollback to before", epoch=state.epoch + 1), None)
    moved = {"policy": policy, "run": "third run", "promoted_at": "2026-01-02T00:00:00+00:00"}
    assert site.step(50, **moved).verdict is Verdict.GO
    record = site.record()
    assert (record.phase, record.passed_percent) == (Phase.PASSED, 50.0)
    assert [attempt.phase for attempt in record.history] == [Phase.PROMOTED]
    assert site.users_go()["failed"] == 0
