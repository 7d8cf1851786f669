from __future__ import annotations

import pytest
from judging import gpu_target, recipe
from published import facts_of

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.policy import AccuracyPolicy, CanaryPolicy
from llm_pipeline.planning.memory import PLAIN
from llm_pipeline.planning.speed import RooflineEngine
from llm_pipeline.planning.stage_cost import quantization_seconds, scoring_seconds
from llm_pipeline.planning.task_pool import TaskItems, canary_warnings, gate_warnings, judge_task_placement, known_tasks

H200 = RooflineEngine(facts_of("Llama-3.1-8B"), PLAIN, find_gpu("H200-SXM-141GB"))


def pool(**items: int | None) -> list[TaskItems]:
    return [TaskItems(name=name, items=number) for name, number in items.items()]


def test_a_canary_that_never_sees_enough_is_told():
    policy = CanaryPolicy(steps_percent=(1, 50, 100))
    (warning,) = canary_warnings(policy, 2.0)
    assert warning.startswith("canary: minimum_requests 50 take 41 min 40 s at 1 %: beyond maximum_bake_seconds")
    assert canary_warnings(policy, 200.0) == ()


def test_a_task_too_small_for_its_own_margin_is_told():
    (warning,) = gate_warnings("accuracy", pool(large=5000, small=100), AccuracyPolicy())
    assert warning.startswith("accuracy: small: 100 items are too few for a margin of 3 points")
    assert warning.endswith("344 items or a margin of 5.6 points would do")


def test_a_pool_that_is_not_known_is_not_judged():
    (warning,) = gate_warnings("accuracy", pool(known=5000, other=None), AccuracyPolicy())
    assert "how many items other have is not known here" in warning


def test_tasks_that_compare_likelihoods_are_served_where_the_engine_tells_them():
    tasks = [known_tasks()["mmlu"], known_tasks()["gsm8k"]]
    assert judge_task_placement(tasks, ["mmlu", "gsm8k"], [gpu_target(engine="vllm")]) == ((), ())
    (refusal,), warnings = judge_task_placement(tasks, ["mmlu"], [gpu_target(engine="vllm"), gpu_target()])
    assert warnings == ()
    assert "mmlu is multiple_choice" in refusal.reason
    assert "tensorrt_llm_llmapi tells none" in refusal.reason
    assert refusal.nearest == "served_tasks: [gsm8k]"


def test_tasks_of_which_nothing_is_known_are_a_warning():
    refusals, (warning,) = judge_task_placement(pool(other=None), ["other"], [gpu_target(engine="tensorrt_llm_engine")])
    assert refusals == ()
    assert "whether other are generative is not known here" in warning


@pytest.mark.parametrize(
    ("weights", "samples", "measured"),
    [("fp8", 512, 18.8), ("int8_smoothquant", 512, 19.9), ("int4_awq", 64, 1.8 + 52.6 + 4.8), ("none", 0, 0.0)],
)
def test_measured_times_of_an_8b_model_on_an_h200_are_nearly_met(weights: str, samples: int, measured: float):
    calibration = {"sources": ["c.jsonl"], "samples": samples, "maximum_tokens": 512} if samples else None
    assert quantization_seconds(recipe(weights, calibration=calibration), H200) == pytest.approx(measured, rel=0.2)


def test_each_item_costs_its_tokens_and_an_unknown_task_has_no_time():
    one, twice = (scoring_seconds([known_tasks()["gsm8k"]] * times, H200, 32) for times in (1, 2))
    assert one is not None
    assert twice == 2 * one
    assert scoring_seconds(pool(other=10), H200, 32) is None
