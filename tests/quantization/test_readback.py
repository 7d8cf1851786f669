from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

import exports
from modelopt.torch.quantization.nn import TensorQuantizer
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, NVFP4QTensor
from transformers import AutoModelForCausalLM

from llm_pipeline.adapters.openvino.builder import write_dequantized
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint
from llm_pipeline.artifacts.tensor_formats import (
    FORMATS,
    StoredWeight,
    quantize_fp8,
    quantize_fp8_per_token,
    quantize_mxfp4,
    quantize_nvfp4,
    round_to_fp4,
    unpack_int4,
)
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.quantization.readback import load_model

# a chat model: generation_config.json has a second end token and shapes answers, and config.json knows of neither
SAYS = {"eos_token_id": [1, 2], "repetition_penalty": 2.35, "max_new_tokens": 3, "no_repeat_ngram_size": 2}

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # OCP MX specification 1.0, table 5
GENERATOR = torch.Generator().manual_seed(11)


def random_weight(rows, columns):
    return torch.randn(rows, columns, generator=GENERATOR) * torch.logspace(-2, 1, rows)[:, None]


def logits(model, tokens=exports.TOKENS, **options):
    with torch.no_grad():
        return model(tokens, **options).logits.float()


def test_int4_nibbles_are_signed_and_alternate_by_row():
    packed = torch.tensor([[0x7F, 0x80]], dtype=torch.uint8)
    assert unpack_int4(packed).tolist() == [[-1, 0], [7, -8]]


def test_blocks_of_four_bits_are_read_as_modelopts_own_tensors_are():
    weight = random_weight(48, 64)
    packed, scale, second = NVFP4QTensor.quantize(weight.clone(), 16)
    own = FORMATS["NVFP4"].dequantize(StoredWeight("a", packed._quantized_data, scale, second))
    expected = packed.dequantize(torch.float32, scale=scale, double_scale=second, block_sizes={-1: 16})
    assert torch.allclose(own, expected, rtol=1e-6, atol=0)
    mx, exponents = MXFP4QTensor.quantize(weight.clone(), 32)
    own = FORMATS["mxfp4"].dequantize(StoredWeight("a", mx._quantized_data, exponents.reshape(48, -1)))
    assert torch.equal(own, mx.dequantize(torch.float32, scale=exponents, block_sizes={-1: 32}))


@pytest.mark.parametrize(("rows", "columns"), [(256, 384), (200, 320), (64, 128)])
def test_square_blocks_are_read_though_the_last_ones_are_cut_off(rows, columns):
    weight = random_weight(rows, columns)
    packed, scale = FP8QTensor.quantize(weight, block_sizes={-1: 128, -2: 128})
    stored = StoredWeight("a", packed._quantized_data[:rows, :columns], scale.float().squeeze())
    error = (FORMATS["fp8_pb_wo"].dequantize(stored) - weight).abs()
    smallest_step = scale.float().max() * 2.0**-9  # of E4M3 below its normal numbers, which have 3 bits of mantissa
    assert (error <= torch.maximum(weight.abs() / 16, smallest_step / 2) * 1.001).all()


def test_four_bit_numbers_round_to_the_nearest_and_ties_to_even():
    values = torch.linspace(-7, 7, 5001)
    grid = torch.tensor(sorted({sign * value for value in E2M1 for sign in (1, -1)}))
    distance = (values[:, None].clamp(-6, 6) - grid).abs()
    assert torch.equal((values.clamp(-6, 6) - round_to_fp4(values)).abs(), distance.min(1).values)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert round_to_fp4(ties).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


def test_dynamic_activation_quantizers_do_what_modelopt_does():
    inputs = random_weight(40, 64).view(2, 20, 64)
    quantizer = TensorQuantizer()
    quantizer.set_from_attribute_config({"num_bits": (4, 3), "type": "dynamic", "block_sizes": {-1: None}})
    assert torch.allclose(quantize_fp8_per_token(inputs), quantizer(inputs), rtol=1e-6)
    mx, exponents = MXFP4QTensor.quantize(inputs.clone(), 32)
    assert torch.equal(quantize_mxfp4(inputs), mx.dequantize(torch.float32, scale=exponents, block_sizes={-1: 32}))
    scale = float(inputs.abs().max()) / (6 * 448)
    packed, blocks, _ = NVFP4QTensor.quantize(inputs.clone(), 16, None, torch.tensor(scale))
    expected = packed.dequantize(torch.float32, scale=blocks, double_scale=scale, block_sizes={-1: 16})
    assert torch.allclose(quantize_nvfp4(inputs, scale), expected, rtol=1e-6)


def test_quantizers_keep_zeros_types_and_signs():
    zeros = torch.zeros(2, 32, dtype=torch.bfloat16)
    for quantize in (quantize_fp8_per_token, quantize_mxfp4, lambda values: quantize_nvfp4(values, 0.01)):
        assert torch.equal(quantize(zeros), zeros)
    assert quantize_fp8(torch.full((4,), -1e6, dtype=torch.bfloat16), 2.0).tolist() == [-896.0] * 4


@pytest.mark.parametrize("name", ["fp8", "fp8_per_channel_token", "fp8_block", "int4_blockwise", "int8_weight_only"])
def test_what_is_read_back_is_what_modelopt_rounds_to(llama, exported, name):
    directory, recipe = exported(name)
    model, checkpoint = exports.quantize(exports.load(llama), exports.modelopt_config(recipe)), Checkpoint(directory)
    for layer in ("model.layers.0.self_attn.o_proj", "model.layers.1.mlp.down_proj"):  # their inputs are theirs alone
        module = model.get_submodule(layer)
        with torch.no_grad():
            expected = module.weight_quantizer(module.weight.float())
        same = torch.isclose(checkpoint.weight(layer), expected, rtol=1e-3)
        assert same.float().mean() > 0.99  # fp16 arithmetic falls on the other side of some ties


def test_a_mixed_checkpoint_is_read_layer_by_layer(llama, mixed):
    checkpoint = Checkpoint(mixed)
    assert checkpoint.metadata.algorithm == "MIXED_PRECISION"
    algorithms = {checkpoint.metadata.algorithm_of(name) for name in checkpoint.layers}
    assert len(algorithms) == 7
    source = exports.load(llama)
    for name in checkpoint.layers:
        weight = source.get_submodule(name).weight.float()
        assert (checkpoint.weight(name) - weight).norm() < 0.2 * weight.norm()
    assert not torch.equal(logits(load_model(mixed, torch.float32)), logits(load_model(llama, torch.float32)))


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_kv_cache_quantizers_change_the_numbers(exported, kind):
    plain, _ = exported("fp8")
    with_cache = logits(load_model(exported("fp8", kv_cache=kind)[0], torch.float32))
    assert not torch.equal(with_cache, logits(load_model(plain, torch.float32)))


def test_a_quantized_kv_cache_does_not_see_the_padding(exported):
    # Transformers gives an attention function that it does not know no mask at all.
    model, tokens = load_model(exported("fp8", kv_cache="fp8")[0], torch.float32), exports.TOKENS[:1, :8]
    padded = torch.cat([torch.full((1, 5), 7), tokens], dim=1)
    mask = torch.cat([torch.zeros(1, 5, dtype=torch.long), torch.ones(1, 8, dtype=torch.long)], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    alone = logits(model, tokens)
    assert torch.allclose(logits(model, padded, attention_mask=mask, position_ids=positions)[:, 5:], alone, atol=1e-3)


def test_a_kv_cache_format_without_a_reader_is_refused(exported, tmp_path, edited):
    directory = edited(exported("fp8", kv_cache="fp8")[0], quantization={"kv_cache_quant_algo": "INT8"})
    with pytest.raises(Unsupported, match="INT8"):
        load_model(directory, torch.float32)


@pytest.mark.parametrize("name", ["int4_awq", "mxfp4", "fp8_block"])
def test_a_dequantized_checkpoint_holds_the_weights_that_are_read_back(exported, name, tmp_path):
    directory, _ = exported(name)
    layers = write_dequantized(directory, tmp_path / "plain")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    model = load_model(directory, torch.float32)
    for layer in layers:
        module = model.get_submodule(layer)
        smoothing = getattr(module, "pre_quant_scale", None)
        weight = module.weight if smoothing is None else module.weight * smoothing
        assert torch.allclose(plain.get_submodule(layer).weight, weight)


def test_the_export_ends_and_answers_by_the_same_rules_as_the_model(llama, tmp_path):
    source = tmp_path / "model"
    shutil.copytree(llama, source)
    (source / "generation_config.json").write_text(json.dumps(SAYS))
    directory = exports.export(source, exports.recipe("int8_weight_only"), tmp_path / "export")
    told = [load_model(one, torch.float32).generation_config.to_diff_dict() for one in (source, directory)]
    assert told[0] == told[1]
    assert told[0]["eos_token_id"] == [1, 2]
    assert told[0].keys().isdisjoint(SAYS.keys() - {"eos_token_id"})
    assert json.loads((directory / "generation_config.json").read_text()) == SAYS


def test_an_export_names_all_end_tokens_in_the_file_that_every_engine_reads(llama, tmp_path):
    """The tokenizer ends answers of a fine-tuned model; its configurations are still those of the base model."""
    source = tmp_path / "model"
    shutil.copytree(llama, source)
    names = json.loads((source / "tokenizer_config.json").read_text()) | {"eos_token": "<s>"}
    (source / "tokenizer_config.json").write_text(json.dumps(names))
    directory = exports.export(source, exports.recipe("int8_weight_only"), tmp_path / "export")
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == [0, 1]
