from __future__ import annotations

from llm_pipeline.config.policy import AccuracyPolicy, CanaryPolicy
from llm_pipeline.config.target import Target
from llm_pipeline.planning.gate_power import canary_warnings, gate_power
from llm_pipeline.planning.task_pool import TaskItems, judge_task_placement, known_tasks


def pool(**items: int | None) -> list[TaskItems]:
    return [TaskItems(name=name, items=number) for name, number in items.items()]


def test_a_canary_that_never_sees_enough_is_told():
    policy = CanaryPolicy(steps_percent=(1, 50, 100))
    (warning,) = canary_warnings(policy, 2.0)
    assert warning.startswith("canary: minimum_requests 50 take 41 min 40 s at 1 %: beyond maximum_bake_seconds")
    assert canary_warnings(policy, 200.0) == ()


def test_a_task_too_small_for_its_own_margin_is_told():
    power = gate_power("accuracy", pool(large=5000, small=100), AccuracyPolicy())
    (warning,) = power.warnings
    assert warning.startswith("accuracy: small: 100 items are too few for a margin of 3 points")
    assert warning.endswith("344 items or a margin of 5.6 points would do")


def test_a_pool_that_is_not_known_is_not_judged():
    power = gate_power("accuracy", pool(known=5000, other=None), AccuracyPolicy())
    assert power.available is None
    assert "how many items other have is not known here" in power.warnings[0]


def target(engine: str) -> Target:
    return Target(name="t", accelerator="H200-SXM-141GB", engine=engine)


def test_tasks_that_compare_likelihoods_are_served_where_the_engine_tells_them():
    tasks = [known_tasks()["mmlu"], known_tasks()["gsm8k"]]
    assert judge_task_placement(tasks, ["mmlu", "gsm8k"], [target("vllm")]) == ((), ())
    (refusal,), warnings = judge_task_placement(tasks, ["mmlu"], [target("vllm"), target("tensorrt_llm_llmapi")])
    assert warnings == ()
    assert "mmlu is multiple_choice" in refusal.reason
    assert "tensorrt_llm_llmapi tells none" in refusal.reason
    assert refusal.nearest == "served_tasks: [gsm8k]"


def test_tasks_of_which_nothing_is_known_are_a_warning():
    refusals, (warning,) = judge_task_placement(pool(other=None), ["other"], [target("tensorrt_llm_engine")])
    assert refusals == ()
    assert "whether other are generative is not known here" in warning
