"""A candidate whose answers are compared with stable's before it has a user, over a real Envoy and real processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase

pytestmark = pytest.mark.slow

SHADOW = {"prompts": 30, "requests_per_second": 100, "maximum_tokens": 4}


def policy(site: Any, **shadow: object) -> dict[str, Any]:
    return {**json.loads(site.settings().read_text())["policy"], "shadow": {**SHADOW, **shadow}}


def test_a_candidate_that_answers_otherwise_is_rolled_back_before_its_first_user(site) -> None:
    site.users(rate=40)
    judgement = site.step(20, policy=policy(site))
    assert judgement.verdict is Verdict.NO_GO
    assert "answers differ from stable's before the first step (shadow: words in common)" in judgement.summary
    record = site.record()
    assert (record.phase, record.passed_percent) == (Phase.ROLLED_BACK, 0.0)
    assert [mark.label for mark in record.marks if mark.label.endswith("%")] == []
    assert site.users_go()["failed"] == 0


def test_a_comparison_within_the_policy_lets_the_first_step_begin_and_stays_in_the_record(site) -> None:
    site.users(rate=40)
    assert site.step(20, policy=policy(site, minimum_agreement=0.0)).verdict is Verdict.GO
    record = site.record()
    assert {fact.name: fact.verdict for fact in record.shadow}["shadow: prompts answered"] is Verdict.GO
    assert record.phase is Phase.PASSED
