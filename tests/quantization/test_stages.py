from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("modelopt")

from llm_pipeline.accuracy.evaluation import read_summary
from llm_pipeline.artifacts.items import read_items
from llm_pipeline.base.progress import Progress
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.execute import execute
from llm_pipeline.stages.accuracy import AccuracyConfig
from llm_pipeline.stages.baseline import BaselineConfig
from llm_pipeline.stages.quantize import QuantizeConfig
from llm_pipeline.store import open_store

CONFIGS = Path(__file__).parents[2] / "configs"
EVALUATION = Evaluation(
    task_directory="tasks/demo",
    tasks=("demo_generate", "demo_choice"),
    served_tasks=("demo_generate",),
    limit=100,
    batch_size=100,
    maximum_length=128,
)
POLICY = AccuracyPolicy(margin=0.02, task_margin=0.05, minimum_items=100)


@pytest.fixture(scope="module")
def release(source, tmp_path_factory):
    """A store with the inputs of a release, and a function that runs a stage of it."""
    root = tmp_path_factory.mktemp("release")
    store = open_store(f"file://{root}/store")
    calibration = root / "calibration"
    calibration.mkdir()
    (calibration / "demo.jsonl").write_bytes((CONFIGS / "calibration/demo.jsonl").read_bytes())
    inputs = {
        "checkpoint": store.publish("checkpoint", source),
        "calibration": store.publish("dataset", calibration),
        "tasks": store.publish("dataset", CONFIGS / "tasks" / "demo"),
    }

    def run(stage, config, subject="", *, use, **given):
        request = StageRequest(
            release_id="r1",
            stage=stage,
            subject=subject,
            config=config.model_dump(mode="json"),
            inputs={**{name: inputs[name] for name in use}, **given},
            store=store.uri,
            work_root=str(root / "work"),
        )
        return execute(request)

    run.store = store
    return run


@pytest.fixture(scope="module")
def baseline(release):
    return release("baseline", BaselineConfig.of(EVALUATION, "float16"), use=("checkpoint", "tasks"))


def quantize(release, recipe, name):
    used = ("checkpoint", "calibration") if recipe(name).calibration else ("checkpoint",)
    return release("quantize", QuantizeConfig(recipe=recipe(name), dtype="float16"), name, use=used)


def judge(release, quantized, baseline, name, policy=POLICY):
    config = AccuracyConfig(evaluation=EVALUATION, policy=policy, dtype="float16")
    refs = {"checkpoint": quantized.artifacts["checkpoint"], "baseline": baseline.artifacts["evaluation"]}
    return release("accuracy", config, name, use=("tasks",), **refs)


def test_the_baseline_is_scored_item_by_item(release, baseline):
    directory = release.store.fetch(baseline.artifacts["evaluation"])
    assert len(read_items(directory)) == baseline.metrics["items"] == 200
    assert read_summary(directory).tasks["demo_choice"].accuracy == baseline.metrics["accuracy_demo_choice"]


def test_a_baseline_is_shared_by_evaluations_that_ask_the_same(release, baseline):
    otherwise = EVALUATION.model_copy(update={"served_tasks": ("demo_choice",), "batch_size": 7, "task_directory": "x"})
    again = release("baseline", BaselineConfig.of(otherwise, "float16"), use=("checkpoint", "tasks"))
    assert (again.reused, again.artifacts) == (True, baseline.artifacts)


def test_the_recipe_none_passes_the_same_checkpoint_on(release, recipe):
    result = quantize(release, recipe, "none")
    downloaded = release.store.publish("checkpoint", release.store.fetch(result.artifacts["checkpoint"]))
    assert result.artifacts["checkpoint"] == downloaded
    assert result.metrics["size_ratio"] == 1.0


def test_a_quantized_checkpoint_is_smaller_counted_and_judged_against_its_baseline(release, recipe, baseline):
    quantized = quantize(release, recipe, "fp8")
    assert quantized.metrics["layers_quantized"] == 14
    assert quantized.metrics["calibration_samples"] == 256
    assert quantized.metrics["size_ratio"] < 0.7
    assert quantized.metrics["bytes"] < 700_000
    result = judge(release, quantized, baseline, "fp8")
    assert result.judgement.verdict is not Verdict.ANOMALOUS
    assert 100 <= result.judgement.evidence[0].samples == result.metrics["items"] <= 200


def test_the_judge_sees_no_difference_where_there_is_none(release, recipe, baseline):
    result = judge(release, quantize(release, recipe, "none"), baseline, "none")
    assert result.judgement.evidence[0].measured == 0.0


def test_another_margin_asks_no_item_again(release, recipe, baseline, monkeypatch):
    quantized, counted = quantize(release, recipe, "none"), []
    judge(release, quantized, baseline, "none")
    monkeypatch.setattr(Progress, "advance", lambda self, steps=1: counted.append((self._what, steps)))
    wider = POLICY.model_copy(update={"margin": 0.05})
    again = judge(release, quantized, baseline, "none", wider)
    assert not again.reused
    assert again.metrics["items"] >= 100
    assert [steps for what, steps in counted if what == "evaluating"] == []


def test_a_gpu_only_recipe_fails_the_stage_at_once(release, recipe):
    failure = quantize(release, recipe, "nvfp4")
    assert failure.outcome == "failure"
    assert failure.error.type == "Unsupported"
