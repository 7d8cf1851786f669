"""A candidate that answers, and answers worse than stable: each fault is caught by what it is."""

from __future__ import annotations

import pytest

from llm_pipeline.base.verdict import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.parametrize(
    ("fault", "metrics"),
    [
        ({"delay_milliseconds": 20.0}, {"slow first token", "slow end"}),
        ({"tail_fraction": 0.2, "tail_milliseconds": 500.0}, {"slow first token", "slow end"}),
        ({"token_milliseconds": 20.0}, {"slow first token", "slow end"}),
        ({"truncated_fraction": 1.0}, {"empty or cut answers"}),
    ],
    ids=["slow in the median", "slow only in the tail", "slow between tokens", "truncated"],
)
def test_a_candidate_that_becomes_worse_at_50_percent_is_rolled_back_for_what_it_is(trial, fault, metrics) -> None:
    judgement = trial.fault_at_50_percent(**fault)
    assert judgement.verdict is Verdict.NO_GO
    worse = {fact.name for fact in judgement.evidence if fact.verdict is Verdict.NO_GO}
    assert worse, judgement
    assert worse <= metrics, judgement
    trial.assert_rolled_back()
    assert trial.lost_unary == {}, trial.site.traffic()["reasons"]
