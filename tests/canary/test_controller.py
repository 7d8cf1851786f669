"""The controller over a real Envoy, real processes and live traffic."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase

pytestmark = pytest.mark.slow


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
    judgements += [site.step(percent) for percent in (50, 100)]
    assert [judgement.verdict for judgement in judgements] == [Verdict.GO] * 3
    assert "sample ratio" in [fact.name for fact in judgements[1].evidence]
    assert site.record().phase is Phase.PROMOTED
    assert site.weights() == {"green": 9_800, "blue": 200}, "until it is settled"
    assert site.control.alive("blue"), "the old version stays warm"
    assert site.users_go()["failed"] == 0


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


def test_killed_between_the_router_and_its_record_the_next_controller_finishes_the_step(site) -> None:
    site.users(rate=40)
    killed = site.start_step(20, die_after="shifting intent")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert site.step(20).verdict is Verdict.GO
    after = site.record()
    assert (after.phase, after.passed_percent) == (Phase.PASSED, 20.0)
    assert site.weights() == {"blue": 8_000, "green": 2_000}
    assert [event.kind for event in after.events].count("shifted") == 1
    assert site.users_go()["failed"] == 0
