from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

import exports
import modelopt.torch.quantization as mtq
from safetensors.torch import load_file

from llm_pipeline.artifacts.checkpoint_files import copy_companions
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint
from llm_pipeline.artifacts.tensor_formats import unpack_int4
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.catalog.modelopt_recipes import ALGORITHMS
from llm_pipeline.quantization import export_weights
from llm_pipeline.quantization.validation import validate_export

LAYER = "model.layers.1.mlp.up_proj"
BITS = {"int4_blockwise": 4, "int4_awq": 4, "w4a8_awq": 4, "mxfp4": 4, "nvfp4": 4.5, "nvfp4_awq": 4.5}


SHAPES = [(128, 128), (64, 128), (64, 128), (128, 128), (256, 128), (256, 128), (128, 256)] * 2
PLAIN_BYTES = 2 * (2 * 384 * 128 + 5 * 128)
"""Of what no recipe here quantizes: embedding, head and norms in 16 bits."""


def scale_bytes(name, rows, columns):
    """By hand: scales are fp32 but for NVFP4's (e4m3, 16 columns each) and MXFP4's (a byte, 32 columns each)."""
    return {
        "fp8": 4 + 4,
        "fp8_per_channel_token": 4 * rows,
        "fp8_block": 4 * -(-rows // 128) * -(-columns // 128),
        "int8_smoothquant": 4 * rows + 4 + 2 * columns,
        "int8_weight_only": 4 * rows,
        "int4_blockwise": 4 * rows * columns // 128,
        "nvfp4": rows * columns // 16 + 4 + 4,
        "mxfp4": rows * columns // 32,
    }.get(name)


@pytest.mark.parametrize("name", exports.FORMATS)
def test_a_sound_export_passes_with_its_facts(llama, exported, name):
    directory, recipe = exported(name)
    facts = validate_export(llama, directory, recipe)
    assert facts.formats == {ALGORITHMS[name]: 14}
    assert facts.compared_layers == len(facts.layers) == 14
    weights, bits = sum(rows * columns for rows, columns in SHAPES), int(BITS.get(name, 8))
    head = 384 * 128
    assert facts.effective_bits == pytest.approx((BITS.get(name, 8) * weights + 16 * head) / (weights + head))
    assert facts.size_ratio == facts.expected_ratio
    if scale_bytes(name, 2, 128) is not None:
        scales = sum(scale_bytes(name, *shape) for shape in SHAPES)
        assert facts.bytes == PLAIN_BYTES + weights * bits // 8 + scales
    assert 0 < facts.worst_error < (0.2 if bits == 4 else 0.05)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
@pytest.mark.parametrize("suffix", ["weight_scale", "input_scale"])
def test_a_damaged_scale_is_found(llama, exported, damaged, suffix, value):
    directory, recipe = exported("fp8")
    broken = damaged(directory, lambda tensors: tensors[f"{LAYER}.{suffix}"].fill_(value))
    with pytest.raises(IntegrityError, match=rf"{LAYER}\.{suffix}: is not"):
        validate_export(llama, broken, recipe)


def test_nan_among_packed_numbers_and_block_scales_is_found(llama, exported, damaged):
    def not_a_number(key):
        return lambda tensors: tensors[key].view(torch.uint8).view(-1)[:1].fill_(0x7F)

    for name, key in (("fp8", f"{LAYER}.weight"), ("nvfp4", f"{LAYER}.weight_scale")):
        directory, recipe = exported(name)
        broken = damaged(directory, not_a_number(key))
        with pytest.raises(IntegrityError, match=rf"{key}: is not finite"):
            validate_export(llama, broken, recipe)
        shutil.rmtree(broken)
    directory, recipe = exported("mxfp4")
    broken = damaged(directory, lambda tensors: tensors[f"{LAYER}.weight_scale"].view(-1)[:1].fill_(255))
    with pytest.raises(IntegrityError, match=rf"{LAYER}\.weight_scale: is not finite"):
        validate_export(llama, broken, recipe)


def swap_nibbles(tensors):
    weight = tensors[f"{LAYER}.weight"]
    tensors[f"{LAYER}.weight"] = (weight << 4) | (weight >> 4)


def swap_layers(tensors):
    other = LAYER.replace("layers.1", "layers.0")
    for suffix in ("weight", "weight_scale"):
        left, right = f"{LAYER}.{suffix}", f"{other}.{suffix}"
        tensors[left], tensors[right] = tensors[right], tensors[left]


def turn_scales(tensors):
    """Along the wrong axis: as many as before, each for other weights."""
    scale = tensors[f"{LAYER}.weight_scale"]
    tensors[f"{LAYER}.weight_scale"] = scale.reshape(*reversed(scale.shape)).T.contiguous().view(scale.shape)


def double_scale(tensors):
    tensors[f"{LAYER}.weight_scale"] *= 2


def pack_along_the_other_dimension(tensors):
    numbers = unpack_int4(tensors[f"{LAYER}.weight"]) & 0xF
    tensors[f"{LAYER}.weight"] = (numbers[:, ::2] | numbers[:, 1::2] << 4).to(torch.uint8).view(128, 128)


def shift_rows(tensors):
    tensors[f"{LAYER}.weight"] = tensors[f"{LAYER}.weight"].roll(1, 0)


def forget_smoothing(tensors):
    tensors["model.layers.1.mlp.down_proj.pre_quant_scale"].fill_(1.0)


def forget_the_norm(tensors):
    tensors["model.layers.1.post_attention_layernorm.weight"].fill_(1.0)


def test_a_norm_that_smoothing_hardly_changed_belongs_to_its_layers(llama, exported, damaged):
    plain = load_file(exported("int4_blockwise")[0] / "model.safetensors")

    def multiply_by_almost_one(tensors):
        tensors["model.layers.1.post_attention_layernorm.weight"] = torch.full((128,), 1.0078125, dtype=torch.float16)
        tensors |= {key: plain[key] for key in tensors if "layers.1.mlp.gate" in key or LAYER in key}

    directory, recipe = exported("int4_awq")
    assert validate_export(llama, damaged(directory, multiply_by_almost_one), recipe).compared_layers == 14


@pytest.mark.parametrize(
    "case",
    [
        ("int4_blockwise", swap_nibbles, LAYER),
        ("nvfp4", swap_nibbles, LAYER),
        ("mxfp4", swap_nibbles, LAYER),
        ("int4_awq", pack_along_the_other_dimension, LAYER),
        ("fp8", swap_layers, r"up_proj"),
        ("int4_awq", swap_layers, r"up_proj"),
        ("fp8_per_channel_token", shift_rows, LAYER),
        ("fp8", double_scale, LAYER),
        ("int8_weight_only", double_scale, LAYER),
        ("int4_awq", double_scale, LAYER),
        ("nvfp4_awq", shift_rows, r"mlp\.(up|down)_proj"),
        ("int4_awq", forget_smoothing, r"down_proj"),
        ("int8_smoothquant", forget_smoothing, r"down_proj"),
        ("int4_awq", forget_the_norm, r"gate_proj|up_proj|layernorm"),
    ],
)
def test_weights_that_are_not_the_sources_are_found(llama, exported, damaged, case):
    name, damage, layer = case
    directory, recipe = exported(name)
    with pytest.raises(IntegrityError, match=layer) as found:
        validate_export(llama, damaged(directory, damage), recipe)
    assert "further from the source" in str(found.value)


def test_scales_along_the_wrong_axis_are_found(llama, exported, damaged):
    directory, recipe = exported("nvfp4")
    with pytest.raises(IntegrityError, match="further from the source"):
        validate_export(llama, damaged(directory, turn_scales), recipe)


def test_an_unquantized_tensor_that_changed_is_found(llama, exported, damaged):
    for name, key in (("fp8", "model.norm.weight"), ("int4_awq", "lm_head.weight")):
        directory, recipe = exported(name)
        broken = damaged(directory, lambda tensors, key=key: tensors[key].view(-1)[3:4].mul_(1.5))
        with pytest.raises(IntegrityError, match=f"{key}: is not the source's"):
            validate_export(llama, broken, recipe)
        shutil.rmtree(broken)


def test_a_large_model_is_sampled_on_a_cpu(llama, exported, monkeypatch):
    monkeypatch.setattr(export_weights, "WEIGHTS_COMPARED_ON_CPU", 100_000)
    facts = validate_export(llama, *exported("fp8"))
    assert 3 <= facts.compared_layers < 14


def unquantize(tensors):
    weight = tensors[f"{LAYER}.weight"].float() * tensors[f"{LAYER}.weight_scale"]
    for key in [key for key in tensors if key.startswith(LAYER)]:
        del tensors[key]
    tensors[f"{LAYER}.weight"] = weight.half()


def test_an_unquantized_layer_is_found(llama, exported, damaged):
    directory, recipe = exported("fp8")
    with pytest.raises(IntegrityError, match="1 layers are not quantized"):
        validate_export(llama, damaged(directory, unquantize), recipe)


def test_a_layer_quantized_against_the_recipe_is_found(llama, exported):
    directory, recipe = exported("fp8")
    fewer = recipe.model_copy(update={"exclude": ("*lm_head*", LAYER)})
    with pytest.raises(IntegrityError, match="quantized that the recipe leaves out"):
        validate_export(llama, directory, fewer)


@pytest.mark.parametrize(("name", "wanted"), [("int8_smoothquant", "fp8"), ("fp8_block", "fp8_per_channel_token")])
def test_another_format_than_the_recipes_is_found(llama, exported, name, wanted):
    with pytest.raises(IntegrityError, match=rf"{ALGORITHMS[name]}, not as {ALGORITHMS[wanted]}"):
        validate_export(llama, exported(name)[0], exports.recipe(wanted))


def test_a_kv_cache_configuration_given_alone_is_refused_by_coverage(llama, tmp_path):
    # Trap A: modelopt's own KV cache configuration, alone, quantizes everything to INT8, head and embedding too.
    model = exports.quantize(exports.load(llama), {**mtq.FP8_KV_CFG, "algorithm": "max"})
    directory = exports.write(model, llama, tmp_path / "checkpoint")
    with pytest.raises(
        IntegrityError, match=r"quantized that the recipe leaves out: \['lm_head', 'model.embed_tokens'\]"
    ):
        validate_export(llama, directory, exports.recipe("fp8", kv_cache="fp8"))


def test_an_export_after_saving_the_model_is_sound(llama, tmp_path):
    # Trap B: saving first turns the config's dtype into a string, which the export reads as a device.
    recipe = exports.recipe("fp8")
    model = exports.quantize(exports.load(llama), exports.modelopt_config(recipe))
    model.save_pretrained(tmp_path / "saved")
    directory = exports.write(model, llama, tmp_path / "checkpoint")
    assert validate_export(llama, directory, recipe).worst_error < 0.05


def test_a_label_that_is_not_what_is_stored_is_found(llama, exported, edited):
    # Model-Optimizer issue 868: exported in one format, labelled as another, everywhere.
    directory = edited(
        exported("fp8")[0],
        quantization={"quant_algo": "NVFP4", "group_size": 16},
        inline={"quant_algo": "NVFP4", "config_groups": {}},
    )
    with pytest.raises(IntegrityError, match=r"float8_e4m3fn .* is not NVFP4, as it is labelled"):
        validate_export(llama, directory, exports.recipe("nvfp4"))


FLOAT4 = {"weights": {"num_bits": 4, "type": "float"}, "targets": ["Linear"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inline": {"quant_algo": "NVFP4"}}, "quant_algo: .* says FP8, config.json says NVFP4"),
        ({"inline": {"ignore": []}}, "excluded modules"),
        ({"inline": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "KV cache: .* says None"),
        ({"inline": {"config_groups": {"group_0": FLOAT4}}}, "FP8, but config.json says float4"),
        ({"config": {"rms_norm_eps": 1.0}}, "rms_norm_eps is 1.0"),
        ({"quantization": {"exclude_modules": ["*up_proj"]}, "inline": {"ignore": ["*up_proj"]}}, "quantized, and"),
        ({"quantization": {"quant_algo": None}}, "names no algorithm"),
    ],
)  # fmt: skip
def test_descriptions_that_contradict_each_other_are_found(llama, exported, edited, change, message):
    directory, recipe = exported("fp8")
    with pytest.raises(IntegrityError, match=message):
        validate_export(llama, edited(directory, **change), recipe)


def test_a_group_size_that_is_not_the_stored_one_is_found(llama, exported, edited):
    directory, recipe = exported("int4_blockwise")
    with pytest.raises(IntegrityError, match=r"scales of .* are not those of W4A16_AWQ"):
        validate_export(llama, edited(directory, quantization={"group_size": 64}), recipe)


@pytest.mark.parametrize("suffix", ["input_scale", "weight_scale_2"])
def test_a_missing_scale_is_found(llama, exported, damaged, suffix):
    directory, recipe = exported("w4a8_awq")
    broken = damaged(directory, lambda tensors: tensors.pop(f"{LAYER}.{suffix}"))
    with pytest.raises(IntegrityError, match=rf"{LAYER}: missing or surplus tensors for W4A8_AWQ: \['.{suffix}'\]"):
        validate_export(llama, broken, recipe)


def test_a_kv_cache_at_another_precision_is_found(llama, exported, damaged):
    wanted = exports.recipe("fp8", kv_cache="fp8")
    with pytest.raises(IntegrityError, match="KV cache format is None, the recipe says FP8"):
        validate_export(llama, exported("fp8")[0], wanted)
    directory, _ = exported("fp8", kv_cache="fp8")
    assert validate_export(llama, directory, wanted).bytes == validate_export(llama, *exported("fp8")).bytes + 16
    broken = damaged(directory, lambda tensors: tensors.pop("model.layers.1.self_attn.v_proj.v_scale"))
    with pytest.raises(IntegrityError, match=r"2 \+ 1 scales of 2 x 2"):
        validate_export(llama, broken, wanted)


def test_tensors_that_are_missing_or_left_over_are_found(llama, exported, damaged):
    directory, recipe = exported("fp8")
    broken = damaged(directory, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(IntegrityError, match=r"1 tensor is missing: model.norm.weight"):
        validate_export(llama, broken, recipe)
    shutil.rmtree(broken)
    broken = damaged(directory, lambda tensors: tensors.update({"model.forgotten.weight": torch.ones(8)}))
    with pytest.raises(IntegrityError, match=r"1 tensor is not the model's: model.forgotten.weight"):
        validate_export(llama, broken, recipe)


def test_bytes_that_the_format_does_not_need_are_found(llama, exported, damaged):
    directory, recipe = exported("fp8")
    key = "model.embed_tokens.weight"
    broken = damaged(directory, lambda tensors: tensors.update({key: tensors[key].float()}))
    with pytest.raises(IntegrityError, match="the formats should need"):
        validate_export(llama, broken, recipe)


def test_a_search_is_held_to_its_formats_its_bits_and_its_solution(llama, searched, monkeypatch):
    directory, recipe, best = searched
    facts = validate_export(llama, directory, recipe)
    assert facts.effective_bits == pytest.approx(best["constraints"]["effective_bits"])
    solved = {name: Checkpoint(directory).metadata.scheme(name).algorithm for name in facts.layers}
    validate_export(llama, directory, recipe, solved=solved)
    search = recipe.search.model_copy(update={"effective_bits": (8.0,)})
    with pytest.raises(IntegrityError, match=r"8\.9.* effective bits, the recipe says 8"):
        validate_export(llama, directory, recipe.model_copy(update={"search": search}))
    without_fp8 = recipe.search.model_copy(update={"formats": ("int4_awq",)})
    with pytest.raises(IntegrityError, match="quantized as FP8, not as W4A16_AWQ"):
        validate_export(llama, directory, recipe.model_copy(update={"search": without_fp8}))
    first = next(iter(solved))
    with pytest.raises(IntegrityError, match="quantized that the recipe leaves out"):
        validate_export(llama, directory, recipe, solved={**solved, first: None})
    unquantized = next(name for name in ("model.layers.0.self_attn.q_proj", "lm_head") if name not in solved)
    with pytest.raises(IntegrityError, match="1 layers are not quantized"):
        validate_export(llama, directory, recipe, solved={**solved, unquantized: "FP8"})


def test_a_recipe_of_modelopts_own_is_held_to_its_own_configuration(llama, exported):
    directory, recipe = exported("fp8", kv_cache="fp8")
    fields = {"weights": "modelopt", "modelopt_recipe": "general/ptq/fp8_default-kv_fp8", "kv_cache": "none"}
    theirs = recipe.model_copy(update=fields)
    assert validate_export(llama, directory, theirs).formats == {"FP8": 14}
    with pytest.raises(IntegrityError, match="KV cache format is None, the recipe says FP8"):
        validate_export(llama, exported("fp8")[0], theirs)
    with pytest.raises(IntegrityError, match="not as FP8"):
        validate_export(llama, exported("int8_smoothquant")[0], theirs)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_a_missing_companion_is_found(llama, exported, damaged, name):
    directory, recipe = exported("fp8")
    broken = damaged(directory, lambda _: None)
    (broken / name).unlink()
    with pytest.raises(IntegrityError, match="no tokenizer" if "tokenizer" in name else "missing"):
        validate_export(llama, broken, recipe)


def test_a_changed_tokenizer_or_chat_template_is_found(llama, exported, damaged):
    directory, recipe = exported("fp8")
    broken = damaged(directory, lambda _: None)
    (broken / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(IntegrityError, match=r"chat_template\.jinja is not the source's: it has none"):
        validate_export(llama, broken, recipe)
    (broken / "chat_template.jinja").unlink()
    settings = json.loads((broken / "tokenizer_config.json").read_text())
    (broken / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 1}))
    with pytest.raises(IntegrityError, match=r"tokenizer_config\.json is not the source's"):
        validate_export(llama, broken, recipe)


def test_columns_that_smoothing_drowns_because_nothing_reaches_them_are_no_error(llama, tmp_path):
    """Trained models have nearly dead channels: smoothed, their weights vanish beside the others', as they may."""
    model = exports.load(llama)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[:40] *= 1e-4
    source = tmp_path / "source"
    model.save_pretrained(source)
    copy_companions(llama, source)
    asked = exports.recipe("int8_smoothquant")
    facts = validate_export(source, exports.export(source, asked, tmp_path / "export"), asked)
    assert facts.worst_error < 0.05
