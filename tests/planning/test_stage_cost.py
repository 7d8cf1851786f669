"""Times by the stated models, and what they cost, against hand arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from judging import recipe
from published import facts_of

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.planning.memory import PLAIN
from llm_pipeline.planning.plan import Plan, format_plan, plan_release
from llm_pipeline.planning.speed import RooflineEngine
from llm_pipeline.planning.stage_cost import PlannedStage, quantization_seconds, scoring_seconds
from llm_pipeline.planning.task_pool import TaskItems, known_tasks

DEPLOYMENT = "deployments/gpu-cluster.yaml"


@pytest.fixture
def real(configs: Path) -> Path:
    return configs / "releases" / "llama-3.1-8b-instruct.yaml"


def plan_of(path: Path) -> Plan:
    return plan_release(path, store_seconds=0)


def costs(plan: Plan) -> dict[str, PlannedStage]:
    return {f"{step.stage} {step.subject}".rstrip(): step for step in plan.stages}


def test_a_load_test_holds_the_targets_gpus_for_all_its_windows(real: Path, edit):
    edit("targets/h100.yaml", "accelerator_count: 1", "accelerator_count: 2")
    edit("targets/h100.yaml", "tensor: 1", "tensor: 2")
    cost = costs(plan_of(real))["load_test h100"]
    warm_up, alone, target, search, confirmation, comparison = 100 / 4, 2 * 20, 300, 6 * 75, 13 * 50, 2 * 9 * 60
    assert cost.seconds == warm_up + alone + target + search + confirmation + comparison
    assert (cost.basis, cost.measurements, cost.accelerator, cost.gpus) == ("model", 0, "H100-SXM5-80GB", 2)
    assert cost.gpu_hours == pytest.approx(2 * cost.seconds / 3600)


def test_a_build_takes_minutes_by_the_size_of_the_largest_checkpoint(real: Path):
    cost = costs(plan_of(real))["build h100"]
    assert cost.seconds == pytest.approx(6 * 9.08, rel=0.01)


def test_vllm_starts_for_the_build_for_staging_and_for_the_canary(configs: Path):
    found = costs(plan_of(configs / "releases" / "llama-3.1-8b-instruct-vllm.yaml"))
    assert found["build h100_vllm"].seconds == found["staging h100_vllm"].seconds == 55.0
    assert found["canary h100_vllm:1"].seconds == 55.0 + 200 / (4 * 0.01)  # until it has its requests
    assert found["canary h100_vllm:25"].seconds == 300.0


def test_quantization_and_scoring_hold_the_quantization_hosts_gpus(real: Path):
    found = costs(plan_of(real))
    assert found["quantize fp8_chat"].accelerator == found["baseline"].accelerator == "H200-SXM-141GB"
    assert found["baseline"].seconds == found["accuracy fp8_chat"].seconds
    assert (found["baseline"].seconds or 0) > 60
    assert (found["quantize fp8_chat"].seconds or 0) > 10


def test_a_canary_bakes_at_least_as_long_as_the_policy_says_and_an_approval_takes_as_long_as_it_takes(real: Path):
    plan = plan_of(real)
    assert costs(plan)["canary l40s:25"].seconds == 300
    assert costs(plan)["approve"].seconds is None
    assert "approve" not in plan.total.not_known
    assert "settle h100" in plan.total.not_known


def test_gpu_hours_cost_what_the_deployment_says(real: Path, edit):
    edit(DEPLOYMENT, "L40S: 2.0", "L40S: 1.5")
    edit(DEPLOYMENT, "currency: USD", "currency: EUR")
    plan = plan_of(real)
    assert costs(plan)["canary h100:25"].price == pytest.approx(4.0 * 300 / 3600)
    assert costs(plan)["canary l40s:25"].price == pytest.approx(1.5 * 300 / 3600)
    expected = sum(cost.price or 0 for cost in costs(plan).values())
    assert plan.total.price == pytest.approx(expected)
    assert f"{expected:.2f} EUR" in format_plan(plan)


def test_without_a_price_of_every_gpu_there_is_no_sum(real: Path, edit):
    edit(DEPLOYMENT, "  L40S: 2.0\n", "")
    plan = plan_of(real)
    assert costs(plan)["canary h100:5"].price is not None
    assert plan.total.price is None
    assert "no gpu_hour_prices" in format_plan(plan)


def test_a_price_of_an_unknown_gpu_is_refused_with_near_names(real: Path, edit):
    edit(DEPLOYMENT, "H100-SXM5-80GB: 4.0", "H100: 4.0")
    with pytest.raises(ConfigError, match="gpu_hour_prices: unknown accelerator 'H100'") as caught:
        plan_of(real)
    assert caught.value.where == "deployment gpu-cluster"
    assert "H100-SXM5-80GB" in caught.value.hint


H200 = RooflineEngine(facts_of("Llama-3.1-8B"), PLAIN, find_gpu("H200-SXM-141GB"))


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
    assert scoring_seconds([TaskItems(name="other", items=10)], H200, 32) is None
