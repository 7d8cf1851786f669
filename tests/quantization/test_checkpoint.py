from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("modelopt")

import exports
from safetensors.torch import load_file, save_file

from llm_pipeline.adapters.openvino.builder import write_dequantized
from llm_pipeline.artifacts.checkpoint_files import read_quantization
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint, StoredTensors
from llm_pipeline.artifacts.tensor_formats import FORMATS, StoredWeight
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.config.quantization import WEIGHT_FORMATS
from llm_pipeline.quantization.readback import load_model


def logits(checkpoint):
    with torch.no_grad():
        return load_model(checkpoint, torch.float32)(exports.TOKENS).logits


@pytest.mark.parametrize("name", exports.FORMATS)
def test_the_metadata_name_the_format_of_each_layer(exported, name):
    metadata = read_quantization(exported(name)[0])
    assert metadata.algorithm == metadata.algorithm_of("model.layers.0.mlp.up_proj") == WEIGHT_FORMATS[name].algorithm
    assert metadata.kv_cache is None


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_the_metadata_name_the_kv_cache(exported, kind):
    assert read_quantization(exported("fp8", kv_cache=kind)[0]).kv_cache == kind.upper()


def test_a_mixed_checkpoint_names_a_scheme_for_each_layer(mixed):
    metadata = read_quantization(mixed)
    assert metadata.algorithm_of("model.layers.0.mlp.up_proj") == "fp8_pb_wo"
    assert metadata.algorithm_of("model.layers.1.mlp.down_proj") == "W4A8_AWQ"
    with pytest.raises(IntegrityError, match=r"hf_quant_config\.json does not say.*\[lm_head\]"):
        metadata.algorithm_of("lm_head")


def test_a_plain_checkpoint_passes_through(llama, tmp_path):
    assert write_dequantized(llama, tmp_path / "plain") == ()
    assert torch.equal(logits(llama), logits(tmp_path / "plain"))


def test_sharded_weights_are_read_whole(exported, tmp_path):
    export, sharded = exported("fp8")[0], tmp_path / "sharded"
    shutil.copytree(export, sharded)
    tensors = dict(StoredTensors(export))
    (sharded / "model.safetensors").unlink()
    names = sorted(tensors)
    for part, file in enumerate("ab"):
        save_file({name: tensors[name] for name in names[part::2]}, sharded / f"{file}.safetensors")
    shards = {name: f"{'ab'[index % 2]}.safetensors" for index, name in enumerate(names)}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert sorted(StoredTensors(sharded)) == names
    assert torch.equal(logits(sharded), logits(export))
    (sharded / "b.safetensors").unlink()
    with pytest.raises(IntegrityError, match="unreadable weights"):
        StoredTensors(sharded)


def test_tensors_are_read_when_they_are_asked_for(exported, monkeypatch):
    read = []
    original = StoredTensors.__getitem__
    monkeypatch.setattr(StoredTensors, "__getitem__", lambda self, key: read.append(key) or original(self, key))
    checkpoint = Checkpoint(exported("int4_blockwise")[0])
    assert len(checkpoint.layers) == 14
    assert read == []
    checkpoint.weight("model.layers.0.mlp.up_proj")
    assert {key.rpartition(".")[0] for key in read} == {"model.layers.0.mlp.up_proj"}


def test_a_truncated_file_is_an_integrity_error(exported, tmp_path):
    export = tmp_path / "short"
    shutil.copytree(exported("fp8")[0], export)
    data = (export / "model.safetensors").read_bytes()
    (export / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(IntegrityError):
        load_model(export, torch.float16)


def test_a_quantized_config_without_its_quantization_file_is_refused(exported, tmp_path):
    export = tmp_path / "export"
    shutil.copytree(exported("fp8")[0], export)
    (export / "hf_quant_config.json").unlink()
    with pytest.raises(IntegrityError, match=r"hf_quant_config\.json is missing"):
        read_quantization(export)


def test_an_unknown_algorithm_is_refused(exported, edited):
    export = edited(exported("fp8")[0], quantization={"quant_algo": "NVFP4_SVD"})
    with pytest.raises(Unsupported, match="cannot read weights of NVFP4_SVD"):
        load_model(export, torch.float16)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (StoredWeight("a", torch.zeros(4, 2, dtype=torch.int16), torch.ones(4)), "int16"),
        (StoredWeight("a", torch.zeros(4, 2, dtype=torch.int8), torch.ones(3)), "3 scales for 4 rows"),
        (
            StoredWeight("a", torch.zeros(4, 2, dtype=torch.int8), torch.ones(4), torch.ones(())),
            "has no weight_scale_2",
        ),
    ],
)
def test_tensors_that_are_not_the_formats_are_refused(stored, message):
    with pytest.raises(IntegrityError, match=message):
        FORMATS["W8A16"].dequantize(stored)


@pytest.mark.parametrize("key", ["model.norm.weight", "model.embed_tokens.weight"])
def test_a_plain_checkpoint_without_a_tensor_is_refused_not_filled_with_random_numbers(llama, tmp_path, key):
    lacking = tmp_path / "lacking"
    shutil.copytree(llama, lacking)
    tensors = load_file(lacking / "model.safetensors")
    del tensors[key]
    save_file(tensors, lacking / "model.safetensors", {"format": "pt"})
    with pytest.raises(IntegrityError, match=f"1 tensors of LlamaForCausalLM are missing: {key}"):
        load_model(lacking, torch.float16)
