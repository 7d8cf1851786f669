from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file

from llm_pipeline.errors import IntegrityError
from llm_pipeline.quantization.checkpoint import dequantize_layer, load_tensors
from llm_pipeline.quantization.validation import validate_export

LAYER = "model.layers.1.mlp.up_proj"


@pytest.fixture
def damage(quantized, tmp_path):
    """A copy of an export whose tensors a function has changed."""

    def make(name, change):
        export = tmp_path / "export"
        shutil.copytree(quantized(name)[0], export)
        tensors = load_tensors(export)
        change(tensors)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, export / "model.safetensors")
        return export

    return make


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("fp8", 0.63),
        ("fp8_kv_fp8", 0.63),
        ("int8_smoothquant", 0.64),
        ("int8_weight_only", 0.64),
        ("int4_naive", 0.45),
        ("int4_awq", 0.45),
        ("w4a8_awq", 0.45),
    ],
)
def test_a_sound_export_passes_with_its_facts(source, recipe, quantized, name, ratio):
    facts = validate_export(source, quantized(name)[0], recipe(name))
    assert len(facts.layers) == 14
    assert "lm_head" not in facts.layers
    assert facts.size_ratio == pytest.approx(ratio, abs=0.02)
    assert facts.size_ratio == pytest.approx(facts.expected_ratio, rel=0.02)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_damaged_scale_is_found(source, recipe, damage, value):
    export = damage("fp8", lambda tensors: tensors[f"{LAYER}.weight_scale"].fill_(value))
    with pytest.raises(IntegrityError, match=rf"{LAYER}\.weight_scale is not"):
        validate_export(source, export, recipe("fp8"))


def test_an_unquantized_layer_is_found(source, recipe, damage):
    def change(tensors):
        weight = dequantize_layer(tensors, LAYER).weight.half()
        for key in [key for key in tensors if key.startswith(LAYER)]:
            del tensors[key]
        tensors[f"{LAYER}.weight"] = weight

    with pytest.raises(IntegrityError, match="1 layers are not quantized"):
        validate_export(source, damage("fp8", change), recipe("fp8"))


def test_a_layer_quantized_against_the_recipe_is_found(source, recipe, quantized):
    fewer = recipe("fp8").model_copy(update={"exclude": ("*lm_head*", LAYER)})
    with pytest.raises(IntegrityError, match="quantized unasked"):
        validate_export(source, quantized("fp8")[0], fewer)


def test_another_format_than_the_recipes_is_found(source, recipe, quantized):
    with pytest.raises(IntegrityError, match="not as fp8"):
        validate_export(source, quantized("int8_smoothquant")[0], recipe("fp8"))


def test_a_missing_activation_scale_is_found(source, recipe, damage):
    export = damage("fp8", lambda tensors: tensors.pop(f"{LAYER}.input_scale"))
    with pytest.raises(IntegrityError, match="no activation scale"):
        validate_export(source, export, recipe("fp8"))


def test_a_kv_cache_at_another_precision_is_found(source, recipe, quantized):
    with pytest.raises(IntegrityError, match="KV cache format is None"):
        validate_export(source, quantized("fp8")[0], recipe("fp8_kv_fp8"))


def test_surplus_bytes_are_found(source, recipe, damage):
    def change(tensors):
        tensors["model.forgotten.weight"] = torch.ones(200_000, dtype=torch.float16)

    with pytest.raises(IntegrityError, match="should need"):
        validate_export(source, damage("fp8", change), recipe("fp8"))


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_a_missing_companion_is_found(source, recipe, damage, name):
    export = damage("fp8", lambda _: None)
    (export / name).unlink()
    with pytest.raises(IntegrityError, match="tokenizer" if "tokenizer" in name else "missing"):
        validate_export(source, export, recipe("fp8"))


def test_a_changed_tokenizer_is_found(source, recipe, damage):
    export = damage("fp8", lambda _: None)
    (export / "tokenizer.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"tokenizer\.json is not the source's"):
        validate_export(source, export, recipe("fp8"))
