"""Why a canary ended without a comparison."""

from __future__ import annotations

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.evidence import too_little_traffic
from llm_pipeline.config.policy import CanaryPolicy


@pytest.mark.parametrize(("can_replay", "advice"), [(True, "replay_requests_per_second"), (False, "yourself")])
def test_a_canary_that_ends_in_silence_says_what_to_do_with_its_router(can_replay, advice):
    ended = too_little_traffic(0, CanaryPolicy(on_undecided="advance"), can_replay=can_replay)
    assert (ended.verdict, ended.summary) == (Verdict.INCONCLUSIVE, "too little traffic to compare with")
    assert advice in ended.evidence[0].detail
