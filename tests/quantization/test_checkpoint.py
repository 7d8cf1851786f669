from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from llm_pipeline.errors import IntegrityError, Unsupported
from llm_pipeline.quantization.checkpoint import (
    dequantize_layer,
    load_tensors,
    quantized_layers,
    read_quantization,
    unpack_int4,
    write_dequantized,
)
from llm_pipeline.quantization.modelopt_quantizer import modelopt_config, mtq
from llm_pipeline.quantization.readback import load_model

TOKENS = torch.tensor([[0, 70, 90, 110, 300, 310, 320, 400], [0, 71, 91, 111, 301, 311, 321, 401]])
ALGORITHMS = {
    "fp8": "FP8",
    "int4_naive": "W4A16_AWQ",
    "int4_awq": "W4A16_AWQ",
    "int8_smoothquant": "W8A8_SQ_PER_CHANNEL",
    "int8_weight_only": "W8A16",
    "w4a8_awq": "W4A8_AWQ",
    "fp8_kv_fp8": "FP8",
}


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits.float()


def in_memory(source, recipe):
    """What modelopt computes, in fp32, without exporting; only for formats without calibration."""
    return logits(mtq.quantize(load_model(source, torch.float32), modelopt_config(recipe)))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_metadata_name_the_format(quantized, name):
    metadata = read_quantization(quantized(name)[0])
    assert metadata.algorithm == ALGORITHMS[name]
    assert metadata.kv_cache == ("FP8" if name == "fp8_kv_fp8" else None)
    assert metadata.producer.startswith("modelopt ")


@pytest.mark.parametrize("name", ["int4_naive", "int8_weight_only"])
def test_what_is_read_back_computes_what_modelopt_computed(source, recipe, quantized, name):
    exported = logits(load_model(quantized(name)[0], torch.float32))
    expected = in_memory(source, recipe(name))
    assert (exported - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_read_back_model_stays_near_its_source(source, quantized, name):
    original = torch.log_softmax(logits(load_model(source, torch.float32)), -1)
    candidate = torch.log_softmax(logits(load_model(quantized(name)[0], torch.float32)), -1)
    divergence = (original.exp() * (original - candidate)).sum(-1).mean()
    assert 0.0 < divergence < (2.0 if name == "int4_naive" else 0.2)


def test_activation_and_kv_cache_quantizers_change_the_numbers(quantized, tmp_path):
    export = quantized("fp8_kv_fp8")[0]
    with_all = logits(load_model(export, torch.float32))
    without_kv = logits(load_model(quantized("fp8")[0], torch.float32))
    write_dequantized(export, tmp_path / "plain")
    weights_only = logits(load_model(tmp_path / "plain", torch.float32))
    assert not torch.equal(with_all, without_kv)
    assert not torch.equal(without_kv, weights_only)


@pytest.mark.parametrize("name", ["int4_naive", "int4_awq", "int8_weight_only"])
def test_a_dequantized_checkpoint_is_the_read_back_model_when_activations_are_not_quantized(quantized, tmp_path, name):
    facts = write_dequantized(quantized(name)[0], tmp_path / "plain")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    assert torch.allclose(logits(plain), logits(load_model(quantized(name)[0], torch.float32)), atol=1e-3)
    assert "quantization_config" not in json.loads((tmp_path / "plain/config.json").read_text())
    assert (tmp_path / "plain/tokenizer.json").exists()
    assert len(facts.layers) == 14
    assert not facts.activation_scales


def test_a_dequantized_checkpoint_says_what_it_lost(quantized, tmp_path):
    facts = write_dequantized(quantized("fp8_kv_fp8")[0], tmp_path / "plain")
    assert len(facts.activation_scales) == 14
    assert len(facts.kv_scales) == 4


def test_a_plain_checkpoint_passes_through(source, tmp_path):
    facts = write_dequantized(source, tmp_path / "plain")
    assert facts.metadata.algorithm is None
    assert facts.layers == ()
    assert torch.equal(logits(load_model(source, torch.float32)), logits(load_model(tmp_path / "plain", torch.float32)))


def test_transformers_alone_would_silently_drop_the_scales(quantized):
    # Why this module exists: no error, other numbers.
    export = quantized("fp8")[0]
    careless = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    ours = logits(load_model(export, torch.float32))
    assert (logits(careless) - ours).abs().max() > 0.1 * ours.abs().max()


def test_the_export_is_not_the_model_in_memory_for_awq(source, recipe, quantized):
    # Why the artifact is evaluated: exporting smooths fused layers again.
    from llm_pipeline.quantization.modelopt_quantizer import _calibration, _forward_loop

    model = load_model(source, torch.float32)
    configs = source.parent / "calibration.jsonl"
    configs.write_text("".join(json.dumps({"text": f"add {n} to 2 :"}) + "\n" for n in range(256)))
    loop = _forward_loop(_calibration(source, recipe("int4_awq"), configs), "cpu")
    memory = logits(mtq.quantize(model, modelopt_config(recipe("int4_awq")), loop))
    from modelopt.torch.export import export_hf_checkpoint

    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.float32, export_dir=source.parent / "awq")
    exported = logits(load_model(source.parent / "awq", torch.float32))
    assert (exported - memory).abs().max() > 1e-3


def test_int4_nibbles_are_signed_and_alternate_by_row():
    packed = torch.tensor([[0x7F, 0x80]], dtype=torch.uint8)
    assert unpack_int4(packed).tolist() == [[-1, 0], [7, -8]]


def test_sharded_weights_are_read_whole(quantized, tmp_path):
    export = tmp_path / "sharded"
    shutil.copytree(quantized("fp8")[0], export)
    tensors = load_tensors(export)
    (export / "model.safetensors").unlink()
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[::2]}, export / "a.safetensors")
    save_file({name: tensors[name] for name in names[1::2]}, export / "b.safetensors")
    shards = {name: f"{'ab'[index % 2]}.safetensors" for index, name in enumerate(names)}
    (export / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert sorted(load_tensors(export)) == names
    (export / "b.safetensors").unlink()
    with pytest.raises(IntegrityError, match="unreadable weights"):
        load_tensors(export)


def test_a_truncated_file_is_an_integrity_error(quantized, tmp_path):
    export = tmp_path / "short"
    shutil.copytree(quantized("fp8")[0], export)
    data = (export / "model.safetensors").read_bytes()
    (export / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(IntegrityError):
        load_model(export, torch.float16)


def test_a_quantized_config_without_its_quantization_file_is_refused(quantized, tmp_path):
    export = tmp_path / "export"
    shutil.copytree(quantized("fp8")[0], export)
    (export / "hf_quant_config.json").unlink()
    with pytest.raises(IntegrityError, match=r"hf_quant_config\.json is missing"):
        read_quantization(export)


def test_an_unknown_storage_is_refused():
    tensors = {"a.weight": torch.zeros(2, 2, dtype=torch.int16), "a.weight_scale": torch.ones(2)}
    assert quantized_layers(tensors) == ["a"]
    with pytest.raises(Unsupported, match="int16"):
        dequantize_layer(tensors, "a")


def test_scales_that_do_not_fit_are_refused():
    tensors = {"a.weight": torch.zeros(4, 2, dtype=torch.int8), "a.weight_scale": torch.ones(3)}
    with pytest.raises(IntegrityError, match="3 scales for 4 rows"):
        dequantize_layer(tensors, "a")


def test_missing_tensors_are_refused(quantized, tmp_path):
    export = tmp_path / "export"
    shutil.copytree(quantized("fp8")[0], export)
    tensors = load_tensors(export)
    del tensors["model.norm.weight"]
    save_file(tensors, export / "model.safetensors")
    with pytest.raises(IntegrityError, match=r"model\.norm\.weight"):
        load_model(export, torch.float16)
