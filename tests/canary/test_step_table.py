from __future__ import annotations

from looking import LIMITS

from llm_pipeline.canary.access_log import ObservedRequest
from llm_pipeline.canary.analysis import AnalysisState, StepState, begin, begin_step, observe
from llm_pipeline.canary.metrics import window
from llm_pipeline.canary.timeline import StepArms, format_step, step_in_numbers
from llm_pipeline.config.policy import CanaryPolicy

POLICY = CanaryPolicy(minimum_bake_seconds=10, maximum_bake_seconds=60, minimum_requests=20)


def request(arm: str, *, at: float = 1.0, fault: bool = False, first: float = 10.0, **changes) -> ObservedRequest:
    values = {"started_at": at, "arm": arm, "on_trial": arm == "green", "fault": fault, "error": fault, "lost": False}
    values |= {"cancelled": False, "streaming": True}
    values |= {"first_byte_milliseconds": first, "total_milliseconds": 2 * first}
    return ObservedRequest(**{**values, **changes})


def step_of(requests: list[ObservedRequest], share: float = 0.25) -> tuple[AnalysisState, StepState, StepArms]:
    state = observe(begin_step(begin(LIMITS, POLICY), share), window(requests, "green", LIMITS, 0.0), 1.0)
    assert state.step is not None
    return state, state.step, StepArms.of(requests, "green", 0.0)


def seen(candidate: int = 100, stable: int = 300, **changes) -> list[ObservedRequest]:
    mine = [request("green", first=24.0, **changes) for _ in range(candidate)]
    return mine + [request("blue", first=22.0, **changes) for _ in range(stable)]


def sentence(requests: list[ObservedRequest], share: float = 0.25) -> str:
    _, step, arms = step_of(requests, share)
    return step_in_numbers(step, arms)


def test_the_sentence_names_both_arms() -> None:
    assert sentence(seen()) == ("100 candidate and 300 stable requests, failures 0 and 0, p95 first byte 24 and 22 ms")


def test_the_table_is_one_text_with_both_arms_the_split_and_the_e_values() -> None:
    slow = [request("green", first=60.0) for _ in range(5)] + [request("green", fault=True)]
    state, step, arms = step_of(seen(candidate=94) + slow)
    text = format_step(state, step, arms, policy=POLICY, seconds=30.2)
    assert text.startswith("\nstep 25 %, 30 s")
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    assert lines[0] == "step 25 %, 30 s candidate (green) stable (blue)"
    assert "requests 100 300" in lines
    assert "failures 1/100 (1.0 %) 0/300 (0.0 %)" in lines
    assert "first byte p50 / p95, ms 24 / 60 22 / 22" in lines
    assert any(line.startswith("slow first token beyond 50 ms (p90) 5/99 (5.1 %) 0/300 (0.0 %) ") for line in lines)
    assert any(line.startswith("slow end beyond 100 ms (p90) 5/99 (5.1 %) 0/300 (0.0 %) ") for line in lines)
    assert any(line.startswith("split: 25.0 % of 400 requests measured, 25 % intended; e-value") for line in lines)
    failed = next(line for line in lines if line.startswith("failed answers 1/100 (1.0 %) 0/300 (0.0 %) "))
    assert failed.split()[-1] == "80", "alpha is split over four"
