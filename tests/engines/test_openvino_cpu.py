from __future__ import annotations

import json
import shutil

import pytest

genai = pytest.importorskip("openvino_genai")
pytest.importorskip("modelopt")

import exports
import numpy as np
import openvino as ov
import tiny_llama
import torch
from openvino import opset15 as op

from llm_pipeline.adapters.openvino.builder import MODEL_FILE, PARITY_PROPERTIES, SERVING_FILES, _read
from llm_pipeline.adapters.openvino.graph import (
    NativeWeights,
    _float32,
    _packed_constant,
    _quantized_input,
    _round_to_fp8,
    _round_to_int8,
)
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint, StoredTensors
from llm_pipeline.artifacts.tensor_formats import quantize_fp8, quantize_fp8_per_token, quantize_int8
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.engines.builder import BuildInputs, engine_builder

pytestmark = pytest.mark.slow

PROMPTS = tiny_llama.prompts(60)
TOKENS = 12
OTHERS = ("fp8_kv_fp8", "int8_smoothquant", "int4_awq", "int4_blockwise", "w4a8_awq", "int4_awq_32")
"""Slower; `mixed` has all formats in one engine."""
ACTIVATIONS_QUANTIZED = {"fp8", "fp8_kv_fp8", "int8_smoothquant", "w4a8_awq"}


def build(checkpoint, target, destination) -> EngineFacts:
    return engine_builder("openvino_cpu").build(BuildInputs(checkpoint, target, dtype="float16"), destination)


def differing(left, right) -> int:
    return sum(a != b for a, b in zip(left, right, strict=True))


def holds_integers(engine) -> bool:
    """Whether weights of an engine are stored in 8 bits or fewer."""
    return any(f'element_type="{kind}"' in (engine / MODEL_FILE).read_text() for kind in ("i8", "u8", "i4", "u4"))


def flips(artifact, engine) -> int:
    """How many of the prompts the engine continues in another way than the checkpoint read back."""
    expected = tiny_llama.greedy_torch(tiny_llama.read_back(artifact), artifact, PROMPTS, TOKENS)
    return differing(tiny_llama.greedy_engine(engine, PROMPTS, TOKENS), expected)


@pytest.mark.parametrize("recipe", ["fp8", *(pytest.param(one, marks=pytest.mark.thorough) for one in OTHERS)])
def test_a_native_engine_generates_what_the_read_back_checkpoint_generates(recipe, exported, built):
    engine, facts = built(recipe)
    # A sum in another order may fall on the other side of an activation quantizer's rounding step.
    assert flips(exported(recipe), engine) <= (2 if recipe in ACTIVATIONS_QUANTIZED else 0)
    assert facts.details["linears_quantized"] == 14
    assert facts.details["activation_quantizers"] == (14 if recipe in ACTIVATIONS_QUANTIZED else 0)
    assert facts.kv_cache == ("fp8 numbers in f32" if "kv" in recipe else "f32")


def test_a_mixed_checkpoint_is_built_layer_by_layer_in_its_own_formats(exported, built):
    engine, facts = built("mixed")
    assert flips(exported("mixed"), engine) <= 2
    assert facts.quantization == "MIXED_PRECISION"
    assert facts.details["linears_quantized"] == 14
    assert facts.details["activation_quantizers"] == 8  # FP8 3, FP8 per token 1, INT8 3, W4A8 1


def test_four_bit_floating_point_is_refused(checkpoint, tmp_path):
    nvfp4 = exports.export(checkpoint, exports.recipe("nvfp4"), tmp_path / "nvfp4")
    with pytest.raises(Unsupported, match="no CPU engine computes NVFP4"):
        NativeWeights(None, Checkpoint(nvfp4))._weight("model.layers.0.mlp.up_proj")


def test_a_plain_checkpoint_keeps_its_16_bit_weights_and_generates_the_same(checkpoint, built):
    engine, facts = built(None)
    assert flips(checkpoint, engine) == 0
    assert facts.quantization is None
    assert facts.details["linears_quantized"] == 0
    assert not holds_integers(engine)
    weights = (checkpoint / "model.safetensors").stat().st_size
    assert (engine / "openvino_model.bin").stat().st_size < 1.1 * weights


def test_a_native_engine_holds_the_artifacts_own_bytes(exported, built):
    artifact, (engine, _) = exported("fp8"), built("fp8")
    stored = (engine / "openvino_model.bin").read_bytes()
    tensors = StoredTensors(artifact)
    packed = tensors["model.layers.1.mlp.down_proj.weight"]
    assert packed.view(torch.uint8).numpy().tobytes() in stored
    assert tensors["model.embed_tokens.weight"].numpy().tobytes() in stored
    assert len(stored) < 1.3 * (artifact / "model.safetensors").stat().st_size


@pytest.mark.parametrize("weight_format", ["fp32", "int8", "int4"])
def test_other_weight_formats_build_and_generate(weight_format, built):
    engine, _ = built(None, weight_format)
    assert all(tiny_llama.greedy_engine(engine, PROMPTS[:2], TOKENS))
    assert holds_integers(engine) == (weight_format != "fp32")


def test_an_engine_records_its_own_answers_for_its_servers_to_repeat(checkpoint, target, tmp_path):
    judged = [GoldenPrompt(prompt=text, completion="of batches in bfloat16", maximum_tokens=TOKENS) for text in PROMPTS]
    inputs = BuildInputs(checkpoint, target("fp32"), dtype="float16", golden=judged[:20])
    facts = engine_builder("openvino_cpu").build(inputs, tmp_path / "engine")
    recorded = read_golden(tmp_path / "engine")
    assert [one.prompt for one in recorded] == PROMPTS[:20]
    served = tiny_llama.greedy_engine(tmp_path / "engine", PROMPTS[:20], TOKENS)
    assert [one.completion for one in recorded] == genai.Tokenizer(tmp_path / "engine").decode(served)
    assert facts.details["golden_match_fraction"] == 0.0


def test_an_engine_that_answers_nothing_as_the_judged_checkpoint_is_refused(checkpoint, target, tmp_path):
    golden = [GoldenPrompt(prompt=text, completion="something else", maximum_tokens=TOKENS) for text in PROMPTS[:2]]
    inputs = BuildInputs(checkpoint, target(), dtype="float16", golden=golden)
    with pytest.raises(IntegrityError, match="0% of 2 golden prompts"):
        engine_builder("openvino_cpu").build(inputs, tmp_path / "engine")


def test_the_engine_directory_holds_what_serving_needs_and_nothing_else(built):
    engine, facts = built("fp8")
    assert {path.name for path in engine.iterdir()} == {*SERVING_FILES, "engine.json", "tokenizer.json"}
    assert [path.name for path in engine.parent.iterdir()] == ["engine"]
    sizes = {path.name: path.stat().st_size for path in engine.iterdir()}
    assert facts.bytes == sum(sizes.values()) - sizes["engine.json"]


def test_the_engine_says_how_it_must_be_run_and_where_it_was_built(built, target):
    engine, facts = built("fp8")
    description = EngineDescription.read(engine)
    assert description.facts == facts
    assert description.target == target()
    assert description.runtime_properties.items() >= PARITY_PROPERTIES.items()
    assert facts.device
    assert facts.context_length == tiny_llama.CONTEXT
    assert set(facts.seconds) == {"dequantize", "trace", "weights", "load", "golden"}


def test_a_layer_that_the_model_does_not_have_is_refused_not_dropped(exported, built, tmp_path):
    from safetensors.torch import save_file

    broken = tmp_path / "broken"
    shutil.copytree(exported("fp8"), broken)
    tensors = dict(StoredTensors(broken))
    for suffix in ("weight", "weight_scale", "input_scale"):
        tensors[f"model.layers.7.mlp.up_proj.{suffix}"] = tensors[f"model.layers.0.mlp.up_proj.{suffix}"].clone()
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    traced = NativeWeights(_read(built(None, "fp32")[0]), Checkpoint(broken))
    with pytest.raises(Unsupported, match=r"the traced graph has no weight.*\[model\.layers\.7\.mlp\.up_proj\]"):
        traced.install()


def test_a_damaged_checkpoint_is_an_integrity_error(exported, target, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(exported("fp8"), broken)
    with (broken / "model.safetensors").open("r+b") as weights:
        weights.truncate(1000)
    with pytest.raises(IntegrityError):
        build(broken, target(), tmp_path / "engine")


def test_an_unknown_architecture_is_unsupported(checkpoint, target, tmp_path):
    strange = tmp_path / "strange"
    shutil.copytree(checkpoint, strange)
    config = json.loads((strange / "config.json").read_text())
    config |= {"model_type": "unheard_of", "architectures": ["UnheardOfForCausalLM"]}
    (strange / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported):
        build(strange, target(), tmp_path / "engine")


def test_the_activation_quantizers_round_exactly_as_the_checkpoint_reader_does():
    def fp8_at(source, scale):
        return _round_to_fp8(source, _float32(scale))

    scale = 0.0173
    fp8 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    middles = (fp8[1:] + fp8[:-1]) / 2
    near = [np.nextafter(values, np.float32(to)) for values in (fp8, middles) for to in (-1e9, 1e9)]
    random = np.random.default_rng(0).standard_normal(4096) * np.logspace(-4, 3, 4096)
    values = np.concatenate([fp8, middles, *near, random]).astype(np.float32)
    values = np.concatenate([values, -values])[None, :]
    for rounded, expected in ((fp8_at, quantize_fp8), (_round_to_int8, quantize_int8)):
        for at in (1.0, scale):
            source = op.parameter([1, -1], np.float32)
            model = ov.Model([rounded(source.output(0), at)], [source])
            engine = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            assert (engine(values)[0] == expected(torch.tensor(values), at).numpy()).all()
    tokens = torch.randn(1024, 128, generator=torch.Generator().manual_seed(0)).bfloat16().float()  # with ties
    source = op.parameter([-1, 128], np.float32)
    model = ov.Model([_quantized_input(source.output(0), "fp8_per_token", None, "")], [source])
    engine = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert (engine(tokens.numpy())[0] == quantize_fp8_per_token(tokens).numpy()).all()


def test_a_packed_constant_survives_the_array_it_was_made_from():
    array = np.arange(4096, dtype=np.uint8) % 127
    expected = array.copy()
    node = _packed_constant(array, (4096,), ov.Type.u8)
    array[:] = 0
    assert (node.get_data() == expected).all()
