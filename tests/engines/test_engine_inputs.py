"""What loads or builds from a checkpoint refuses it before any work, if its tensors are not those of its model."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

import yaml
from safetensors.torch import load_file, save_file
from test_tensorrt_llm_llmapi import target as h100

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.quantization.device_memory import Placement, load_plain_model
from llm_pipeline.quantization.modelopt_quantizer import Quantizer
from llm_pipeline.quantization.readback import load_model
from llm_pipeline.release.execute import execute

NORM = "model.layers.1.post_attention_layernorm.weight"
REF = ArtifactRef(kind="checkpoint", digest="c" * 64)
GOLDEN = [GoldenPrompt(prompt="the cat", completion=" sees", max_tokens=2)]


@pytest.fixture(scope="module")
def damaged(checkpoint, exported, tmp_path_factory):
    """The checkpoint or one of its exports, without a tensor."""

    def make(recipe=None, lacking=NORM):
        copy = tmp_path_factory.mktemp("damaged") / "checkpoint"
        shutil.copytree(exported(recipe) if recipe else checkpoint, copy)
        tensors = load_file(copy / "model.safetensors")
        del tensors[lacking]
        save_file(tensors, copy / "model.safetensors", {"format": "pt"})
        return copy

    return make


@pytest.mark.parametrize(
    ("builder", "recipe"),
    [
        ("openvino_cpu", None),
        ("openvino_cpu", "fp8"),
        ("tensorrt_llm_llmapi", None),
        ("tensorrt_llm_llmapi", "fp8"),
    ],
)
def test_no_engine_is_built_of_a_checkpoint_without_a_norm(builder, recipe, damaged, target, tmp_path):
    place = h100() if builder == "tensorrt_llm_llmapi" else target(engine=builder)
    inputs = BuildInputs(damaged(recipe), place, dtype="float16", checkpoint_ref=REF, golden=GOLDEN)
    with pytest.raises(IntegrityError, match=f"1 tensor is missing: {NORM}"):
        engine_builder(builder).build(inputs, tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(
    ("lacking", "problem"),
    [
        (NORM, "1 tensor is missing"),
        ("model.layers.0.mlp.up_proj.weight", "there are scales, but no weight"),
        ("model.layers.0.mlp.up_proj.weight_scale", "model.layers.0.mlp.up_proj.weight is F8_E4M3"),
        ("model.layers.0.mlp.up_proj.input_scale", "missing or surplus"),
        ("model.layers.0.self_attn.v_proj.v_scale", "1 scales of the KV cache are missing"),
    ],
)
def test_no_quantized_checkpoint_is_judged_without_one_of_its_tensors(lacking, problem, damaged):
    with pytest.raises(IntegrityError, match=problem):
        load_model(damaged("fp8_kv_fp8", lacking), torch.float32)


def test_no_baseline_is_measured_of_a_checkpoint_without_a_norm(damaged):
    with pytest.raises(IntegrityError, match=f"1 tensor is missing: {NORM}"):
        load_model(damaged(), torch.float32)


def test_nothing_is_quantized_of_a_checkpoint_without_a_norm(damaged, tmp_path):
    recipe = QuantizationRecipe(name="int8", weights="int8_weight_only")
    with pytest.raises(IntegrityError, match=f"1 tensor is missing: {NORM}"):
        Quantizer(damaged(), recipe, None, dtype=torch.float16, device="cpu", work=tmp_path)


def test_no_checkpoint_without_a_norm_passes_unquantized(damaged, tmp_path):
    from llm_pipeline.release.contract import StageRequest
    from llm_pipeline.store import open_store

    store = open_store(f"file://{tmp_path}/store")
    request = StageRequest(
        release_id="r1", stage="quantize", subject="none", store=store.uri, work_root=str(tmp_path / "work"),
        config=yaml.safe_load("{recipe: {name: none, weights: none}, dtype: float16}"),
        inputs={"checkpoint": store.publish("checkpoint", damaged())},
    )  # fmt: skip
    assert f"1 tensor is missing: {NORM}" in str(execute(request).error)


def test_a_loader_that_is_given_less_than_the_model_fails_instead_of_making_it_up(damaged, tmp_path):
    """The second line: whoever forgets to look at the headers first."""
    with pytest.raises(IntegrityError, match=f"1 tensor is missing: {NORM}"):
        load_plain_model(damaged(), torch.float16, Placement(), tmp_path)
