from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
mtq = pytest.importorskip("modelopt.torch.quantization")

from transformers import LlamaConfig, LlamaForCausalLM

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization.calibration import read_calibration
from llm_pipeline.quantization.modelopt_configs import disabled_layers, kv_cache_config, modelopt_config, search_formats
from llm_pipeline.quantization.modelopt_quantizer import Quantizer

CALIBRATION = {"sources": ["c.jsonl"], "samples": 1, "maximum_tokens": 8}
CALIBRATED = ("fp8", "int8_smoothquant", "int4_awq", "w4a8_awq", "nvfp4", "nvfp4_awq")
LAYERS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


def asked(weights, **fields):
    needs = weights in (*CALIBRATED, "auto") or fields.get("kv_cache", "none") != "none"
    return QuantizationRecipe(name="r", weights=weights, **({"calibration": CALIBRATION} if needs else {}) | fields)


def quantizers(config):
    """Which quantizers of a two-layer llama a configuration turns on, and with which numbers."""
    shape = LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    mtq.quantize(model, {**config, "algorithm": None})
    return {
        name: module.num_bits
        for name, module in model.named_modules()
        if name.endswith("_quantizer") and getattr(module, "is_enabled", False) and hasattr(module, "num_bits")
    }


def layers_of(enabled, kind):
    suffix = f".{kind}_quantizer"
    return {name.removesuffix(suffix) for name in enabled if name.endswith(suffix)}


EVERY_LAYER = {f"model.layers.{index}.{layer}" for index in range(2) for layer in LAYERS}


@pytest.mark.parametrize(
    ("weights", "bits", "inputs"),
    [
        ("fp8", (4, 3), True), ("fp8_per_channel_token", (4, 3), True), ("fp8_block", (4, 3), False),
        ("int8_smoothquant", 8, True), ("int8_weight_only", 8, False), ("int4_blockwise", 4, False),
        ("int4_awq", 4, False), ("nvfp4", (2, 1), True), ("nvfp4_awq", (2, 1), True), ("mxfp4", (2, 1), True),
    ],
)  # fmt: skip
def test_a_format_quantizes_every_linear_layer_and_nothing_else(weights, bits, inputs):
    enabled = quantizers(modelopt_config(asked(weights)))
    assert layers_of(enabled, "weight") == EVERY_LAYER
    assert layers_of(enabled, "input") == (EVERY_LAYER if inputs else set())
    assert set(enabled.values()) == {bits}
    assert not any("bmm" in name for name in enabled)


@pytest.mark.parametrize(("kv_cache", "bits"), [("fp8", (4, 3)), ("nvfp4", (2, 1))])
@pytest.mark.parametrize("weights", ["fp8", "int4_blockwise"])
def test_a_kv_cache_format_changes_no_weight(weights, kv_cache, bits):
    """Trap A: modelopt's KV cache configuration alone puts INT8 on every linear layer."""
    alone = quantizers(modelopt_config(asked(weights)))
    both = quantizers(modelopt_config(asked(weights, kv_cache=kv_cache)))
    added = {name: both[name] for name in both.keys() - alone.keys()}
    assert {name: both[name] for name in alone} == alone
    assert added == {f"model.layers.{layer}.self_attn.{kv}_bmm_quantizer": bits for layer in (0, 1) for kv in "kv"}


def test_excluded_layers_are_the_recipes_and_modelopts_own():
    config = modelopt_config(asked("fp8", exclude=("*lm_head*", "model.layers.0.mlp", "*layers.1.self_attn.q_proj")))
    kept = {f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")} | {"model.layers.1.self_attn.q_proj"}
    assert layers_of(quantizers(config), "weight") == EVERY_LAYER - kept


def test_excluding_attention_keeps_the_format_of_the_cache():
    config = modelopt_config(asked("fp8", kv_cache="fp8", exclude=("*self_attn*",)))
    enabled = quantizers(config)
    assert not any("self_attn" in name for name in layers_of(enabled, "weight"))
    assert sum("bmm" in name for name in enabled) == 4


def test_convolutions_are_left_as_an_export_holds_them():
    layers = torch.nn.Sequential(torch.nn.Conv1d(8, 8, 1), torch.nn.Linear(8, 8))
    mtq.quantize(layers, {**modelopt_config(asked("fp8")), "algorithm": None})
    assert [layer.weight_quantizer.is_enabled for layer in layers] == [False, True]


def test_a_search_has_its_formats_and_keeps_exclusions_and_the_cache_apart():
    search = {"formats": ["int4_blockwise", "fp8"], "effective_bits": [6.0]}
    recipe = asked("auto", search=search, kv_cache="fp8", exclude=("*lm_head*", "model.layers.0.mlp"))
    assert [quantizers(config) for config in search_formats(recipe.search)] == [
        quantizers(modelopt_config(asked(name))) for name in ("int4_blockwise", "fp8")
    ]
    assert disabled_layers(recipe)[:3] == ["*lm_head*", "model.layers.0.mlp", "model.layers.0.mlp.*"]
    assert "*router*" in disabled_layers(recipe)
    assert kv_cache_config(recipe)["quant_cfg"][0]["quantizer_name"] == "*[kv]_bmm_quantizer"
    with pytest.raises(ValueError, match="no one modelopt configuration"):
        modelopt_config(recipe)


def test_the_quantizer_refuses_a_gpu_only_format_before_it_reads_anything(recipe, tmp_path):
    with pytest.raises(Unsupported):
        Quantizer(tmp_path / "absent", recipe("nvfp4"), None, dtype=torch.float16, device="cpu")


def test_a_calibrated_recipe_without_data_is_refused(recipe, tmp_path):
    with pytest.raises(ConfigError, match="no calibration data"):
        read_calibration(tmp_path / "absent", recipe("fp8"), None)
