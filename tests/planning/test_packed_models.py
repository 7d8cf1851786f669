"""Checkpoints that are quantized already: what their packed tensors stand for."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from judging import recipe
from published import config_of

from llm_pipeline.config.target import Parallelism
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.grouping import HeldTensor
from llm_pipeline.model_facts.reader import ModelDocuments, read_facts
from llm_pipeline.planning.memory import rank_weight_bytes, weight_bytes

ROWS, COLUMNS, VOCABULARY = 256, 512, 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": COLUMNS, "intermediate_size": 1024,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
BYTES = {"I32": 4, "U8": 1, "F8_E4M3": 1, "F16": 2, "BF16": 2, "F32": 4}
KEYS = "model.layers.0.self_attn.k_proj"


def facts_with(quantization: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]) -> ModelFacts:
    """A model of one matrix of 256 x 512, packed in some way."""
    held = {"model.embed_tokens.weight": ("BF16", (VOCABULARY, COLUMNS)), **tensors}
    found = [HeldTensor(name, dtype, shape, prod(shape) * BYTES[dtype]) for name, (dtype, shape) in held.items()]
    return read_facts(ModelDocuments(CONFIG | {"quantization_config": quantization}, tensors=found))


PACKED = {
    "awq 4 bit": ({"quant_method": "awq", "bits": 4, "group_size": 128}, {
        f"{KEYS}.qweight": ("I32", (COLUMNS, ROWS // 8)), f"{KEYS}.qzeros": ("I32", (4, ROWS // 8)),
        f"{KEYS}.scales": ("F16", (4, ROWS)),
    }),
    "gptq 4 bit": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, {
        f"{KEYS}.qweight": ("I32", (COLUMNS // 8, ROWS)), f"{KEYS}.qzeros": ("I32", (4, ROWS // 8)),
        f"{KEYS}.scales": ("F16", (4, ROWS)), f"{KEYS}.g_idx": ("I32", (COLUMNS,)),
    }),
    "gptq 3 bit": ({"quant_method": "gptq", "bits": 3, "group_size": 128}, {
        f"{KEYS}.qweight": ("I32", (COLUMNS * 3 // 32, ROWS)), f"{KEYS}.qzeros": ("I32", (4, ROWS * 3 // 32)),
        f"{KEYS}.scales": ("F16", (4, ROWS)), f"{KEYS}.g_idx": ("I32", (COLUMNS,)),
    }),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {
        f"{KEYS}.weight": ("F8_E4M3", (ROWS, COLUMNS)), f"{KEYS}.weight_scale_inv": ("F32", (2, 4)),
    }),
    "compressed-tensors W4A16": (
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
        {f"{KEYS}.weight_packed": ("I32", (ROWS, COLUMNS // 8)), f"{KEYS}.weight_scale": ("BF16", (ROWS, 4)),
         f"{KEYS}.weight_shape": ("I32", (2,))},
    ),
    "modelopt NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {
        f"{KEYS}.weight": ("U8", (ROWS, COLUMNS // 2)), f"{KEYS}.weight_scale": ("F8_E4M3", (ROWS, COLUMNS // 16)),
        f"{KEYS}.weight_scale_2": ("F32", ()), f"{KEYS}.input_scale": ("F32", ()),
    }),
    "modelopt W4A16_AWQ": ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, {
        f"{KEYS}.weight": ("U8", (ROWS // 2, COLUMNS)), f"{KEYS}.weight_scale": ("F32", (ROWS, 4)),
        f"{KEYS}.pre_quant_scale": ("BF16", (COLUMNS,)),
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_count_as_many_parameters_as_they_stand_for(name: str):
    facts = facts_with(*PACKED[name])
    assert facts.stored_format == name
    assert [(group.rows, group.columns) for group in facts.matrices] == [(ROWS, COLUMNS)]
    assert facts.parameters == VOCABULARY * COLUMNS + ROWS * COLUMNS
    assert sum(facts.stored_by_dtype.values()) == facts.stored_bytes < 2 * facts.parameters
    assert weight_bytes(facts, recipe("none")) == facts.stored_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_a_single_rank_holds_all_that_is_stored(tied: bool):
    """An embedding table that is the head, too, is stored once."""
    quantization, tensors = PACKED["fp8"]
    if not tied:
        tensors = tensors | {"lm_head.weight": ("BF16", (VOCABULARY, COLUMNS))}
    facts = facts_with(quantization, tensors)
    assert facts.tied_embeddings is tied
    assert rank_weight_bytes(facts, recipe("none"), Parallelism()) == facts.stored_bytes


def test_experts_in_one_packed_tensor_are_as_many_as_it_holds():
    config = config_of("gpt-oss-20b")
    one = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    experts = "model.layers.0.mlp.experts"
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (201_088, 2880)),
        f"{KEYS}.weight": ("BF16", (512, 2880)),
        f"{experts}.gate_up_proj_blocks": ("U8", (32, 5760, 90, 16)),
        f"{experts}.gate_up_proj_scales": ("U8", (32, 5760, 90)),
        f"{experts}.gate_up_proj_bias": ("BF16", (32, 5760)),
    }
    found = [HeldTensor(name, dtype, shape, prod(shape) * BYTES[dtype]) for name, (dtype, shape) in shapes.items()]
    facts = read_facts(ModelDocuments(config | one, tensors=found))
    fused = next(group for group in facts.matrices if group.kind == "fused")
    assert (fused.copies, fused.active, fused.rows, fused.columns) == (32, 4, 5760, 2880)
    assert facts.other_parameters == 32 * 5760
