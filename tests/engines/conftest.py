"""Real checkpoints and engines, made once a session."""

from __future__ import annotations

from functools import cache

import pytest


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    tiny_llama = pytest.importorskip("tiny_llama", exc_type=ImportError)
    return tiny_llama.make_checkpoint(tmp_path_factory.mktemp("plain") / "checkpoint")


@pytest.fixture(scope="session")
def exported(checkpoint, tmp_path_factory):
    """Quantized checkpoints by recipe, each made when it is first asked for."""
    import exports

    @cache
    def make(name):
        directory = tmp_path_factory.mktemp(name) / "checkpoint"
        if name == "mixed":
            return exports.export_mixed(checkpoint, directory)
        fields = {"fp8_kv_fp8": {"kv_cache": "fp8"}, "int4_awq_32": {"group_size": 32}}.get(name, {})
        weights = name.removesuffix("_kv_fp8").removesuffix("_32")
        return exports.export(checkpoint, exports.recipe(weights, **fields), directory)

    return make


@pytest.fixture(scope="session")
def target():
    from llm_pipeline.config.target import Target

    def make(weight_format="native", **changes):
        fields = {"name": "cpu", "accelerator": "cpu", "accelerator_count": 0, "engine": "openvino_cpu"}
        return Target(**{**fields, "weight_format": weight_format, **changes})

    return make


@pytest.fixture(scope="session")
def built(checkpoint, exported, target, tmp_path_factory):
    """Engines by recipe (None for the plain checkpoint) and weight format, each built once: directory and facts."""
    from llm_pipeline.engines.builder import BuildInputs, engine_builder

    @cache
    def make(recipe, weight_format="native"):
        source = exported(recipe) if recipe else checkpoint
        engine = tmp_path_factory.mktemp("built") / "engine"
        inputs = BuildInputs(source, target(weight_format), dtype="float16")
        return engine, engine_builder("openvino_cpu").build(inputs, engine)

    return make
