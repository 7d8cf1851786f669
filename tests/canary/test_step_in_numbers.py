from __future__ import annotations

import pytest
from looking import LIMITS, request

from llm_pipeline.canary.analysis import begin, begin_step, observe
from llm_pipeline.canary.metrics import window
from llm_pipeline.canary.timeline import arms_since, step_in_numbers
from llm_pipeline.config.policy import CanaryPolicy


@pytest.mark.parametrize(
    ("share", "stable", "streaming", "sentence"),
    [
        (0.25, 300, True, "100 candidate and 300 stable requests, failures 0 and 0, p95 first byte 24 and 22 ms"),
        (0.25, 300, False, "100 candidate and 300 stable requests, failures 0 and 0, p95 last byte 48 and 44 ms"),
        (1.0, 0, True, "100 candidate requests, failures 0, p95 first byte 24 ms"),
    ],
)
def test_a_step_is_told_in_one_sentence(share: float, stable: int, streaming: bool, sentence: str) -> None:
    seen = [request("green", first=24.0, total=48.0, streaming=streaming) for _ in range(100)]
    seen += [request("blue", first=22.0, total=44.0, streaming=streaming) for _ in range(stable)]
    state = observe(begin_step(begin(LIMITS, CanaryPolicy()), share), window(seen, "green", LIMITS, 0.0), 1.0)
    assert state.step is not None
    assert step_in_numbers(state.step, arms_since(seen, "green", 0.0)) == sentence
