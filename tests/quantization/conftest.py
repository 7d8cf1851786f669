"""Real exports in every format, made once a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A small random llama."""
    import exports

    return exports.checkpoint(tmp_path_factory.mktemp("llama") / "checkpoint")


@pytest.fixture(scope="session")
def exported(llama, tmp_path_factory):
    """Its exports by format and KV cache format, each made when it is first asked for: directory and recipe."""
    import exports

    made = {}

    def make(weights, **fields):
        key = (weights, *fields.values())
        if key not in made:
            recipe = exports.recipe(weights, **fields)
            made[key] = exports.export(llama, recipe, tmp_path_factory.mktemp(weights) / "checkpoint"), recipe
        return made[key]

    return make


@pytest.fixture(scope="session")
def mixed(llama, tmp_path_factory):
    """An export whose layers have a format each."""
    import exports

    model = exports.quantize(exports.load(llama), exports.tiny_llama.mixed_config())
    return exports.write(model, llama, tmp_path_factory.mktemp("mixed") / "checkpoint")


@pytest.fixture
def damaged(tmp_path):
    """A copy of an export whose tensors a function has changed."""
    import shutil

    from safetensors.torch import save_file

    from llm_pipeline.artifacts.quantized_checkpoint import StoredTensors

    def make(directory, change):
        copy = tmp_path / "damaged"
        shutil.copytree(directory, copy)
        tensors = {key: tensor.clone() for key, tensor in StoredTensors(copy).items()}
        change(tensors)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, copy / "model.safetensors")
        return copy

    return make


@pytest.fixture
def edited(tmp_path):
    """A copy of an export with some keys of its quantization changed, in hf_quant_config.json or in config.json."""
    import json
    import shutil

    def make(directory, quantization=None, inline=None, config=None):
        copy = tmp_path / "edited"
        shutil.copytree(directory, copy)
        stated, whole = json.loads((copy / "hf_quant_config.json").read_text()), json.loads(
            (copy / "config.json").read_text()
        )  # fmt: skip
        stated["quantization"] |= quantization or {}
        whole["quantization_config"] |= inline or {}
        whole |= config or {}
        (copy / "hf_quant_config.json").write_text(json.dumps(stated))
        (copy / "config.json").write_text(json.dumps(whole))
        return copy

    return make
