from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_pipeline.config.quantization import CALIBRATED, QuantizationRecipe
from llm_pipeline.config.target import EngineLimits, Target
from llm_pipeline.planning.aiconfigurator import Prediction, installed_command, predict
from llm_pipeline.planning.plan import Plan, format_plan, plan_release
from llm_pipeline.planning.speed import Tokens

DOUBLES = Path(__file__).parents[1] / "doubles"
REAL = Path(__file__).parents[2] / "configs" / "releases" / "llama-3.1-8b-instruct.yaml"
COMMAND = (str(DOUBLES / "aiconfigurator"),)


def ask(weights: str = "none", accelerator: str = "H200-SXM-141GB", **options: object) -> Prediction:
    target = Target(
        name="t", accelerator=accelerator, engine="tensorrt_llm_llmapi", limits=EngineLimits(maximum_sequences=16)
    )
    calibration = {"sources": ["c"], "samples": 1, "maximum_tokens": 8} if weights in CALIBRATED else None
    recipe = QuantizationRecipe.model_validate({"name": "r", "weights": weights, "calibration": calibration})
    return predict(COMMAND, "Qwen/Qwen3-8B", target, recipe, tokens=Tokens(1024, 128), **options)  # type: ignore[arg-type]


def test_a_recorded_answer_is_read_and_gives_its_throughput():
    """It said 69.5 ms, 8.57 ms and 1767 tokens/s; the throughput is ours, from the two."""
    answer = ask()
    assert (answer.first_token_milliseconds, answer.token_milliseconds) == (69.5, 8.57)
    assert answer.tokens_per_second == pytest.approx(1767, rel=0.01)
    assert (answer.requests, answer.prompt_tokens, answer.output_tokens) == (16, 1024, 128)
    assert answer.problem == ""


@pytest.mark.parametrize("weights", ["fp8", "fp8_block", "int8_smoothquant", "int8_weight_only", "int4_awq", "nvfp4"])
def test_every_format_that_it_knows_has_a_name_that_it_takes(weights: str):
    assert ask(weights).problem == ""


def test_what_it_does_not_know_it_is_not_asked():
    assert ask("w4a8_awq").problem == "AIConfigurator does not know w4a8_awq"
    assert ask(accelerator="L4").problem == "AIConfigurator does not know L4"


def test_its_failure_is_told_in_its_last_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_AICONFIGURATOR", "fails")
    assert ask().problem == "AIConfigurator failed: ValueError: no silicon data for this model"


def test_it_is_not_waited_for_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_AICONFIGURATOR", "hangs")
    assert ask(time_limit_seconds=0.2).problem == "AIConfigurator did not answer within 0.2 s"


def test_a_plan_asks_it_only_when_told_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(DOUBLES), prepend=os.pathsep)
    assert installed_command() == COMMAND
    recipes = [recipe for target in plan_release(REAL, store_seconds=0).targets for recipe in target.recipes]
    assert {recipe.prediction for recipe in recipes} == {None}
    plan = plan_release(REAL, store_seconds=0, predict=True)
    assert plan.targets[0].recipes[0].prediction is not None
    assert plan.targets[0].recipes[0].prediction.token_milliseconds == pytest.approx(3 * 8.57)
    assert "AIConfigurator, fp8_chat: " in format_plan(plan)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_where_it_is_not_installed_the_plan_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llm_pipeline.planning.target_plan.installed_command", lambda: None)
    plan = plan_release(REAL, store_seconds=0, predict=True)
    assert format_plan(plan).count("  AIConfigurator is not installed\n") == len(plan.targets)
