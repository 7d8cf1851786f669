"""Requests that hang at the candidate are in no count yet, so the split looks wrong."""

from __future__ import annotations

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.analysis import StepState
from llm_pipeline.canary.evidence import does_not_answer
from llm_pipeline.statistics.eprocess import SplitTest


def split_of(candidate: int, stable: int, share: float = 0.25) -> StepState:
    split = SplitTest(intended=share).observe(candidate_requests=candidate, stable_requests=stable)
    assert split.rejects(0.001), "or else nobody asks"
    return StepState(share=share, split=split)


@pytest.mark.parametrize("waits", [140, 200, 350])
def test_requests_that_wait_at_the_candidate_explain_those_that_are_missing_however_far_the_log_is_behind(
    waits,
) -> None:
    found = does_not_answer(split_of(40, 560), candidate_waits=waits, stable_waits=2)
    assert found is not None
    assert found.verdict is Verdict.NO_GO


@pytest.mark.parametrize(
    ("candidate", "stable", "waits"),
    [(40, 560, 0), (40, 560, 10), (40, 560, 90), (300, 300, 40)],
    ids=["nobody waits", "too few wait", "enough for doubt wait, not for an explanation", "too many were sent"],
)
def test_a_split_that_waiting_requests_do_not_explain_is_the_routers(candidate, stable, waits) -> None:
    assert does_not_answer(split_of(candidate, stable), candidate_waits=waits, stable_waits=0) is None
