from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

import exports
from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.quantization.export_check import check_export
from llm_pipeline.quantization.modelopt_quantizer import in_memory

LAYER = "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def check(llama):
    """Checks an export against what the model in memory answered; models are made once."""
    answers = {}

    def run(directory, recipe):
        if recipe.name not in answers:
            model = exports.quantize(exports.load(llama), exports.modelopt_config(recipe))
            with exports.quiet(), torch.inference_mode():
                requantize_resmooth_fused_llm_layers(model)
                answers[recipe.name] = in_memory(model)
        return check_export(llama, directory, recipe, answers[recipe.name], dtype=torch.float16, device="cpu")

    return run


@pytest.mark.parametrize("name", [name for name in exports.FORMATS if name != "mxfp4"])  # it quantizes on GPUs only
def test_a_sound_export_passes(exported, check, name):
    facts = check(*exported(name))
    assert facts.layers == 14
    assert facts.difference < 0.03


def test_a_quantized_kv_cache_passes(exported, check):
    directory, recipe = exported("fp8", kv_cache="fp8")
    assert check(directory, recipe.model_copy(update={"name": "with-cache"})).layers == 14


def double_scale(tensors):
    tensors[f"{LAYER}.weight_scale"] *= 2


def swap_nibbles(tensors):
    weight = tensors[f"{LAYER}.weight"]
    tensors[f"{LAYER}.weight"] = (weight << 4) | (weight >> 4)


def shift_rows(tensors):
    tensors[f"{LAYER}.weight"] = tensors[f"{LAYER}.weight"].roll(1, 0)


def forget_smoothing(tensors):
    tensors["model.layers.1.mlp.down_proj.pre_quant_scale"].fill_(1.0)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("fp8", double_scale),
        ("int8_weight_only", double_scale),
        ("int4_blockwise", swap_nibbles),
        ("nvfp4", swap_nibbles),
        ("fp8_per_channel_token", shift_rows),
        ("int8_smoothquant", forget_smoothing),
    ],
)
def test_an_export_that_answers_otherwise_is_found(exported, damaged, check, name, damage):
    directory, recipe = exported(name)
    with pytest.raises(IntegrityError, match="answers otherwise"):
        check(damaged(directory, damage), recipe)


@pytest.mark.parametrize(("suffix", "value"), [("weight_scale", float("nan")), ("input_scale", float("inf"))])
def test_a_scale_that_is_no_number_is_found(exported, damaged, check, suffix, value):
    directory, recipe = exported("fp8")
    with pytest.raises(IntegrityError, match=r"is not finite|have the scale inf"):
        check(damaged(directory, lambda tensors: tensors[f"{LAYER}.{suffix}"].fill_(value)), recipe)


def test_missing_tensors_and_a_missing_tokenizer_are_found(exported, damaged, check):
    directory, recipe = exported("fp8")
    for key, message in (
        ("model.norm.weight", "missing_keys"),
        (f"{LAYER}.weight", "up_proj"),
        (f"{LAYER}.input_scale", "has no input_scale"),
    ):
        broken = damaged(directory, lambda tensors, key=key: tensors.pop(key))
        with pytest.raises(IntegrityError, match=message):
            check(broken, recipe)
        shutil.rmtree(broken)
    broken = damaged(directory, lambda _: None)
    (broken / "tokenizer.json").unlink()
    with pytest.raises(IntegrityError, match="no tokenizer"):
        check(broken, recipe)


def test_another_format_than_the_recipes_is_found(exported, check):
    with pytest.raises(IntegrityError, match="layers are FP8, not fp8_pb_wo"):
        check(exported("fp8")[0], exports.recipe("fp8_block"))
    with pytest.raises(IntegrityError, match="the KV cache is None, the recipe says FP8"):
        check(exported("fp8")[0], exports.recipe("fp8", kv_cache="fp8"))
    excluding = exports.recipe("fp8").model_copy(update={"exclude": ("*up_proj",)})
    with pytest.raises(IntegrityError, match="up_proj is quantized, and excluded"):
        check(exported("fp8")[0], excluding)


def test_a_label_that_is_not_what_is_stored_is_found(exported, edited, check):
    # Model-Optimizer issue 868: exported in one format, labelled as another.
    everywhere = edited(exported("fp8")[0], {"quant_algo": "NVFP4", "group_size": 16}, {"quant_algo": "NVFP4"})
    with pytest.raises(IntegrityError, match=r"are not NVFP4|NVFP4 has a weight_scale_2"):
        check(everywhere, exports.recipe("nvfp4"))
    shutil.rmtree(everywhere)
    in_one_place = edited(exported("fp8")[0], inline={"quant_algo": "NVFP4"})
    with pytest.raises(IntegrityError, match=r"hf_quant_config\.json says FP8, config.json NVFP4"):
        check(in_one_place, exports.recipe("fp8"))


@pytest.mark.parametrize("name", ["fp8", "int8_smoothquant", "w4a8_awq", "nvfp4"])
def test_an_export_with_another_scale_of_inputs_is_found(exported, damaged, check, name):
    directory, recipe = exported(name)

    def shift(tensors):
        tensors[f"{LAYER}.input_scale"] *= 1.1

    with pytest.raises(IntegrityError, match=f"inputs of {LAYER} have the scale"):
        check(damaged(directory, shift), recipe)
