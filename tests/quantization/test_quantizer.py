"""The quantize stage and the quantizer behind it, with modelopt and a real checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

from safetensors.torch import load_file
from transformers.models.llama.modeling_llama import LlamaModel

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe
from llm_pipeline.quantization import export_check, modelopt_quantizer
from llm_pipeline.quantization.calibration import read_calibration
from llm_pipeline.quantization.device_memory import OutOfMemory
from llm_pipeline.quantization.export_check import check_export
from llm_pipeline.quantization.modelopt_quantizer import Quantizer
from llm_pipeline.quantization.tensorrt_llm_checkpoint import check_tensorrt_llm_checkpoint
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.execute import execute
from llm_pipeline.stages.quantize import QuantizeConfig
from llm_pipeline.store import open_store

torch.set_num_threads(1)

DATA = Path(__file__).parents[2] / "configs/calibration/demo.jsonl"
CALIBRATION = Calibration(sources=("calibration/demo.jsonl",), samples=8, maximum_tokens=16, batch_size=8)


def make_recipe(weights="fp8", **options):
    options.setdefault("calibration", CALIBRATION)
    return QuantizationRecipe(name=weights, weights=weights, **options)


@pytest.fixture(scope="module")
def quantize(source, tmp_path_factory):
    root = tmp_path_factory.mktemp("quantize")
    store = open_store(f"file://{root}/store")
    (root / "data").mkdir()
    (root / "data/demo.jsonl").write_bytes(DATA.read_bytes())
    inputs = {"checkpoint": store.publish("checkpoint", source), "calibration": store.publish("dataset", root / "data")}

    def run(recipe):
        request = StageRequest(
            release_id="r1",
            stage="quantize",
            subject=recipe.name,
            config=QuantizeConfig(recipe=recipe, dtype="bfloat16").model_dump(mode="json"),
            inputs=inputs if recipe.calibration else {"checkpoint": inputs["checkpoint"]},
            store=store.uri,
            work_root=str(root / "work"),
        )
        return execute(request)

    run.store = store
    return run


def test_what_was_seen_of_an_export_is_told(quantize):
    metrics = quantize(make_recipe()).metrics
    assert metrics["layers_quantized"] == 14
    assert metrics["size_ratio"] < 0.7
    assert metrics["export_difference"] < 0.02
    assert metrics["peak_host_bytes"] > 50e6
    assert {"seconds_load", "seconds_quantize", "seconds_export", "seconds_check"} <= metrics.keys()


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


def test_an_export_that_its_check_refuses_is_not_published(quantize, monkeypatch):
    monkeypatch.setattr(export_check, "LARGEST_DIFFERENCE", -1.0)
    before = {artifact.ref for artifact in quantize.store.artifacts()}
    failure = quantize(make_recipe("int8_weight_only", calibration=None))
    assert failure.error.type == "IntegrityError"
    assert "answers otherwise" in failure.error.message
    assert {artifact.ref for artifact in quantize.store.artifacts()} == before


@pytest.mark.parametrize(
    ("weights", "algorithm", "ranks"),
    [("int8_smoothquant", "W8A8_SQ_PER_CHANNEL", 2), ("fp8", "FP8", 1)],
)
def test_a_tensorrt_llm_checkpoint_is_exported_beside_the_other(quantize, weights, algorithm, ranks):
    result = quantize(make_recipe(weights, tensorrt_llm_checkpoint=True, tensorrt_llm_ranks={"tensor": ranks}))
    directory = quantize.store.fetch(result.artifacts["tensorrt_llm_checkpoint"])
    config = json.loads((directory / "config.json").read_text())
    assert config["quantization"]["quant_algo"] == algorithm
    files = [directory / f"rank{rank}.safetensors" for rank in range(ranks)]
    assert result.metrics["tensorrt_llm_bytes"] == sum(path.stat().st_size for path in files)
    other = load_file(quantize.store.fetch(result.artifacts["checkpoint"]) / "model.safetensors")
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
def test_a_tensorrt_llm_checkpoint_that_says_something_else_is_refused(quantize, tmp_path, change):
    recipe = make_recipe("int8_weight_only", calibration=None, tensorrt_llm_checkpoint=True)
    made = quantize.store.fetch(quantize(recipe).artifacts["tensorrt_llm_checkpoint"])
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


def test_a_search_keeps_to_its_bits_and_uses_both_formats(quantize):
    result = quantize(searching(7.0))
    assert result.metrics["effective_bits"] <= 7.0
    stated = json.loads((quantize.store.fetch(result.artifacts["checkpoint"]) / "hf_quant_config.json").read_text())
    algorithms = {layer["quant_algo"] for layer in stated["quantization"]["quantized_layers"].values()}
    assert algorithms == {"FP8", "W4A8_AWQ"}


def test_the_kv_cache_is_quantized_beside_a_search(quantize):
    recipe = searching(10.0, kv_cache="fp8")
    result = quantize(recipe.model_copy(update={"search": recipe.search.model_copy(update={"formats": ("fp8",)})}))
    directory = quantize.store.fetch(result.artifacts["checkpoint"])
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
    sys.path.insert(0, str(Path(__file__).parents[1] / "corpus"))
    import tiny_models

    source, recipe = (
        tiny_models.make("qwen3-moe", tmp_path / "source"),
        make_recipe("fp8_per_channel_token", calibration=None),
    )
    export = tmp_path / "export"
    logits = Quantizer(source, recipe, None, dtype=torch.float16, device="cpu").export(export)
    found = check_export(source, export, recipe, logits, dtype=torch.float16, device="cpu")
    assert found.difference is None
    assert found.layers == 2 * (4 + 3 * 4)  # attention, and four experts of three matrices
