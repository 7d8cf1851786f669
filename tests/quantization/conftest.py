"""Real exports in every format, made once a session."""

from __future__ import annotations

from functools import cache

import pytest


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A small random llama."""
    import tiny_llama

    return tiny_llama.make_checkpoint(tmp_path_factory.mktemp("llama") / "checkpoint")


@pytest.fixture(scope="session")
def exported(llama, tmp_path_factory):
    """Its exports by format and KV cache format, each made when it is first asked for: directory and recipe."""
    import exports

    @cache
    def make(weights, **fields):
        recipe = exports.recipe(weights, **fields)
        return exports.export(llama, recipe, tmp_path_factory.mktemp(weights) / "checkpoint"), recipe

    return make


@pytest.fixture(scope="session")
def mixed(llama, tmp_path_factory):
    """An export whose layers have a format each."""
    import exports

    return exports.export_mixed(llama, tmp_path_factory.mktemp("mixed") / "checkpoint")


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

    def make(directory, quantization=None, inline=None):
        copy = tmp_path / "edited"
        shutil.copytree(directory, copy)
        for name, key, changes in (
            ("hf_quant_config.json", "quantization", quantization or {}),
            ("config.json", "quantization_config", inline or {}),
        ):
            document = json.loads((copy / name).read_text())
            document[key] |= changes
            (copy / name).write_text(json.dumps(document))
        return copy

    return make
