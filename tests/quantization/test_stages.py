"""The stages baseline, quantize and accuracy, with modelopt, lm-eval and a real checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

from resolved_release import request_below
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.llama.modeling_llama import LlamaModel

from llm_pipeline.accuracy.evaluation import read_summary
from llm_pipeline.artifacts.items import read_items
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.progress import Progress
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe
from llm_pipeline.config.release import Evaluation
from llm_pipeline.quantization import export_check, modelopt_quantizer
from llm_pipeline.quantization.calibration import read_calibration
from llm_pipeline.quantization.device_memory import OutOfMemory
from llm_pipeline.quantization.export_check import check_export
from llm_pipeline.quantization.modelopt_quantizer import Quantizer
from llm_pipeline.quantization.tensorrt_llm_checkpoint import check_tensorrt_llm_checkpoint
from llm_pipeline.release.execute import execute
from llm_pipeline.stages.accuracy import AccuracyConfig
from llm_pipeline.stages.baseline import BaselineConfig
from llm_pipeline.stages.quantize import QuantizeConfig
from llm_pipeline.store import open_store

torch.set_num_threads(1)

CONFIGS = Path(__file__).parents[2] / "configs"
DATA = CONFIGS / "calibration/demo.jsonl"
EVALUATION = Evaluation(
    task_directory="tasks/demo", tasks=("demo_generate", "demo_choice"), served_tasks=("demo_generate",), limit=100,
    batch_size=100, maximum_length=128,
)  # fmt: skip
POLICY = AccuracyPolicy(margin=0.02, task_margin=0.05, minimum_items=100)
CALIBRATION = Calibration(sources=("calibration/demo.jsonl",), samples=8, maximum_tokens=16, batch_size=8)


def make_recipe(weights="fp8", **options):
    options.setdefault("calibration", CALIBRATION)
    return QuantizationRecipe(name=weights, weights=weights, **options)


@pytest.fixture(scope="module")
def release(source, tmp_path_factory):
    """A store with the inputs of a release, and a function that runs a stage of it."""
    root = tmp_path_factory.mktemp("release")
    store = open_store(f"file://{root}/store")
    (root / "calibration").mkdir()
    (root / "calibration/demo.jsonl").write_bytes(DATA.read_bytes())
    inputs = {
        "checkpoint": store.publish("checkpoint", source),
        "calibration": store.publish("dataset", root / "calibration"),
        "tasks": store.publish("dataset", CONFIGS / "tasks" / "demo"),
    }

    def run(stage, config, subject="", *, use, **given):
        given |= {name: inputs[name] for name in use}
        return execute(request_below(root, stage, config.model_dump(mode="json"), subject=subject, inputs=given))

    run.store = store
    return run


@pytest.fixture(scope="module")
def quantize(release):
    def run(recipe, dtype="bfloat16"):
        used = ("checkpoint", "calibration") if recipe.calibration else ("checkpoint",)
        return release("quantize", QuantizeConfig(recipe=recipe, dtype=dtype), recipe.name, use=used)

    return run


@pytest.fixture(scope="module")
def baseline(release):
    return release("baseline", BaselineConfig.of(EVALUATION, "float16"), use=("checkpoint", "tasks"))


def test_what_was_seen_of_an_export_is_told(quantize):
    metrics = quantize(make_recipe()).metrics
    assert metrics["layers_quantized"] == 14
    assert metrics["size_ratio"] < 0.7
    assert metrics["export_difference"] < 0.01
    assert metrics["peak_host_bytes"] > 50e6
    assert {"seconds_load", "seconds_quantize", "seconds_export", "seconds_check"} <= metrics.keys()


def test_the_weights_of_fp8_are_rounded_once_from_bfloat16(release, source, quantize):
    made = load_file(release.store.fetch(quantize(make_recipe()).artifacts["checkpoint"]) / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    plain, scale = load_file(source / "model.safetensors")[name].bfloat16().float(), made[f"{name}_scale"]
    nearest = (plain / scale).to(torch.float8_e4m3fn).float()
    assert (made[name].float() != nearest).float().mean() < 0.001  # ties may go either way


def test_after_a_kill_the_stage_starts_again_and_makes_the_same(quantize):
    recipe = make_recipe(exclude=("*lm_head*", "*layers.1.*"))
    if (pid := os.fork()) == 0:
        modelopt_quantizer.copy_companions = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        quantize(recipe)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    again = quantize(recipe)
    assert not again.reused
    other = quantize(recipe.model_copy(update={"name": "other"}))
    assert again.artifacts == other.artifacts


def test_a_generation_config_that_transformers_does_not_save_is_kept(source, tmp_path):
    """Llama 2 published one with a temperature and no word of sampling."""
    model = tmp_path / "model"
    shutil.copytree(source, model)
    generation = {"eos_token_id": [1], "temperature": 0.6, "top_p": 0.9}
    (model / "generation_config.json").write_text(json.dumps(generation))
    recipe = make_recipe("int8_weight_only", calibration=None)
    Quantizer(model, recipe, None, dtype=torch.bfloat16, device="cpu").export(tmp_path / "export")
    assert json.loads((tmp_path / "export/generation_config.json").read_text()) == generation


def test_an_export_that_its_check_refuses_is_not_published(release, quantize, monkeypatch):
    monkeypatch.setattr(export_check, "LARGEST_DIFFERENCE", -1.0)
    before = {artifact.ref for artifact in release.store.artifacts()}
    failure = quantize(make_recipe("int8_weight_only", calibration=None))
    assert failure.error.type == "IntegrityError"
    assert "answers otherwise" in failure.error.message
    assert {artifact.ref for artifact in release.store.artifacts()} == before


@pytest.mark.parametrize(
    ("weights", "algorithm", "ranks"), [("int8_smoothquant", "W8A8_SQ_PER_CHANNEL", 2), ("fp8", "FP8", 1)]
)
def test_a_tensorrt_llm_checkpoint_is_exported_beside_the_other(release, quantize, weights, algorithm, ranks):
    result = quantize(make_recipe(weights, tensorrt_llm_checkpoint=True, tensorrt_llm_ranks={"tensor": ranks}))
    directory = release.store.fetch(result.artifacts["tensorrt_llm_checkpoint"])
    config = json.loads((directory / "config.json").read_text())
    assert config["quantization"]["quant_algo"] == algorithm
    files = [directory / f"rank{rank}.safetensors" for rank in range(ranks)]
    assert result.metrics["tensorrt_llm_bytes"] == sum(path.stat().st_size for path in files)
    other = load_file(release.store.fetch(result.artifacts["checkpoint"]) / "model.safetensors")
    exported = load_file(directory / "rank0.safetensors")
    if weights == "fp8":
        scale = exported["transformer.layers.1.mlp.proj.weights_scaling_factor"]
        assert scale == other["model.layers.1.mlp.down_proj.weight_scale"]


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"hidden_act": None},
        {"mapping": {"world_size": 2}},
        {"quantization": {"quant_algo": "FP8"}},
    ],
)
def test_a_tensorrt_llm_checkpoint_that_says_something_else_is_refused(release, quantize, tmp_path, change):
    recipe = make_recipe("int8_weight_only", calibration=None, tensorrt_llm_checkpoint=True)
    made = release.store.fetch(quantize(recipe).artifacts["tensorrt_llm_checkpoint"])
    config = json.loads((made / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value}))
    (tmp_path / "rank0.safetensors").symlink_to(made / "rank0.safetensors")
    with pytest.raises(IntegrityError):
        check_tensorrt_llm_checkpoint(tmp_path, recipe, "bfloat16")


def test_a_tensorrt_llm_checkpoint_of_a_format_that_has_none_is_refused_at_once(quantize):
    failure = quantize(make_recipe("fp8_block", calibration=None, tensorrt_llm_checkpoint=True))
    assert failure.error.type == "Unsupported"
    assert "remove tensorrt_llm_checkpoint" in failure.error.hint


def searching(bits, **options):
    search = {"formats": ("w4a8_awq", "fp8"), "effective_bits": (bits,)}
    return make_recipe("auto", search=search, **options)


def test_a_search_keeps_to_its_bits_and_uses_both_formats(release, quantize):
    result = quantize(searching(7.0))
    assert result.metrics["effective_bits"] <= 7.0
    stated = json.loads((release.store.fetch(result.artifacts["checkpoint"]) / "hf_quant_config.json").read_text())
    algorithms = {layer["quant_algo"] for layer in stated["quantization"]["quantized_layers"].values()}
    assert algorithms == {"FP8", "W4A8_AWQ"}


def test_the_kv_cache_is_quantized_beside_a_search(release, quantize):
    recipe = searching(10.0, kv_cache="fp8")
    result = quantize(recipe.model_copy(update={"search": recipe.search.model_copy(update={"formats": ("fp8",)})}))
    directory = release.store.fetch(result.artifacts["checkpoint"])
    assert b'"kv_cache_quant_algo": "FP8"' in (directory / "hf_quant_config.json").read_bytes()
    assert "model.layers.1.self_attn.k_proj.k_scale" in load_file(directory / "model.safetensors")


def test_bits_that_cannot_be_reached_are_refused(source, tmp_path):
    recipe = searching(4.01)
    quantizer = Quantizer(source, recipe, read_calibration(source, recipe, DATA), dtype=torch.bfloat16, device="cpu")
    with pytest.raises(ConfigError, match=r"minimum achievable effective bits is 5\.7143"):
        quantizer.export(tmp_path / "export")


def test_a_batch_that_does_not_fit_is_told_with_what_to_change(source, tmp_path, monkeypatch):
    def forward(self, input_ids=None, **_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(LlamaModel, "forward", forward)
    recipe = make_recipe()
    quantizer = Quantizer(source, recipe, read_calibration(source, recipe, DATA), dtype=torch.bfloat16, device="cpu")
    with pytest.raises(OutOfMemory, match="out of memory in calibration") as failure:
        quantizer.export(tmp_path / "export")
    assert "smaller calibration.batch_size" in failure.value.hint
    assert not (tmp_path / "export").exists()


def test_quantized_experts_are_exported_and_checked_without_being_read_back(tmp_path):
    import tiny_models

    source, recipe = (
        tiny_models.make("qwen3-moe", tmp_path / "source"),
        make_recipe("fp8_per_channel_token", calibration=None),
    )
    export = tmp_path / "export"
    expected = Quantizer(source, recipe, None, dtype=torch.float16, device="cpu").export(export)
    found = check_export(source, export, recipe, expected, dtype=torch.float16, device="cpu")
    assert found.difference is None
    assert found.layers == 2 * (4 + 3 * 4)  # attention, and four experts of three matrices


def test_the_text_of_a_model_of_several_parts_is_exported_under_its_own_names(tmp_path):
    import tiny_models

    sizes = {**tiny_models.SIZES, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    parts = {"text_config": {**sizes, "full_attention_interval": 2}, "vision_config": {"depth": 1, "hidden_size": 64}}
    source, export, recipe = tiny_models.make("qwen3", tmp_path / "source"), tmp_path / "export", make_recipe("fp8")
    whole = AutoModelForImageTextToText.from_config(AutoConfig.for_model("qwen3_5", **parts)).to(torch.bfloat16)
    whole.save_pretrained(source)
    (source / "preprocessor_config.json").write_text("{}")
    data = read_calibration(source, recipe, DATA)
    expected = Quantizer(source, recipe, data, dtype=torch.bfloat16, device="cpu").export(export)
    assert check_export(source, export, recipe, expected, dtype=torch.bfloat16, device="cpu").layers == 13
    assert (export / "preprocessor_config.json").exists()  # whatever serves all parts reads it
    assert "model.layers.0.mlp.up_proj.weight" in load_file(export / "model.safetensors")
    assert "model.language_model.layers.0.mlp.up_proj.weight" in load_file(source / "model.safetensors")


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


def test_the_recipe_none_passes_the_same_checkpoint_on(release, quantize, recipe):
    result = quantize(recipe("none"), "float16")
    downloaded = release.store.publish("checkpoint", release.store.fetch(result.artifacts["checkpoint"]))
    assert result.artifacts["checkpoint"] == downloaded
    assert result.metrics["size_ratio"] == 1.0


def test_a_quantized_checkpoint_is_smaller_counted_and_judged_against_its_baseline(release, quantize, recipe, baseline):
    quantized = quantize(recipe("fp8"), "float16")
    assert quantized.metrics["layers_quantized"] == 14
    assert quantized.metrics["calibration_samples"] == 256
    assert quantized.metrics["size_ratio"] < 0.7
    assert quantized.metrics["bytes"] < 700_000
    result = judge(release, quantized, baseline, "fp8")
    assert result.judgement.verdict is not Verdict.ANOMALOUS
    assert 100 <= result.judgement.evidence[0].samples == result.metrics["items"] <= 200


def test_the_judge_sees_no_difference_where_there_is_none(release, quantize, recipe, baseline):
    result = judge(release, quantize(recipe("none"), "float16"), baseline, "none")
    assert result.judgement.evidence[0].measured == 0.0


def test_another_margin_asks_no_item_again(release, quantize, recipe, baseline, monkeypatch):
    quantized, counted = quantize(recipe("none"), "float16"), []
    judge(release, quantized, baseline, "none")
    monkeypatch.setattr(Progress, "advance", lambda self, steps=1: counted.append((self._what, steps)))
    wider = POLICY.model_copy(update={"margin": 0.05})
    again = judge(release, quantized, baseline, "none", wider)
    assert not again.reused
    assert again.metrics["items"] >= 100
    assert [steps for what, steps in counted if what == "evaluating"] == []
