from __future__ import annotations

import pytest

pytest.importorskip("modelopt")

import exports
from transformers import LlamaConfig

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.quantization.divisibility import refuse_partial_blocks


@pytest.fixture
def llama_of_width(tmp_path):
    def write(width):
        LlamaConfig(
            architectures=["LlamaForCausalLM"],
            vocab_size=256,
            hidden_size=128,
            intermediate_size=width,
            num_hidden_layers=2,
            num_attention_heads=2,
        ).save_pretrained(tmp_path)
        return tmp_path

    return write


SEARCH = {"search": {"formats": ("int4_blockwise", "fp8"), "effective_bits": (6.0,)}}


@pytest.mark.parametrize(
    ("weights", "fields"), [("int4_blockwise", {}), ("int4_awq", {}), ("w4a8_awq", {}), ("auto", SEARCH)]
)
def test_layers_that_blocks_of_int4_do_not_divide_are_refused_and_named(llama_of_width, weights, fields):
    source, recipe = llama_of_width(192), exports.recipe(weights, **fields)
    with pytest.raises(Unsupported, match=r"2 of \d+ layers .* model\.layers\.0\.mlp\.down_proj has 192") as refused:
        refuse_partial_blocks(source, recipe)
    assert "exclude these layers" in refused.value.hint
    refuse_partial_blocks(source, exports.recipe(weights, exclude=("*.down_proj",), **fields))


@pytest.mark.parametrize("weights", ["fp8", "fp8_block", "int8_weight_only", "nvfp4"])
def test_formats_without_such_blocks_take_any_width(llama_of_width, weights):
    refuse_partial_blocks(llama_of_width(192), exports.recipe(weights))


def test_whole_blocks_pass(llama_of_width):
    refuse_partial_blocks(llama_of_width(256), exports.recipe("int4_awq"))
