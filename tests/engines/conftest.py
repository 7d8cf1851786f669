"""Real checkpoints and engines, made once a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    tiny_llama = pytest.importorskip("tiny_llama", exc_type=ImportError)
    return tiny_llama.make_checkpoint(tmp_path_factory.mktemp("plain") / "checkpoint")


@pytest.fixture(scope="session")
def exported(checkpoint, tmp_path_factory):
    """Quantized checkpoints by recipe, each made when it is first asked for."""
    import tiny_llama

    made = {}

    def make(recipe):
        if recipe not in made:
            made[recipe] = tiny_llama.export_quantized(
                checkpoint, recipe, tmp_path_factory.mktemp(recipe) / "checkpoint"
            )
        return made[recipe]

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

    made = {}

    def make(recipe, weight_format="native"):
        if (recipe, weight_format) not in made:
            source = exported(recipe) if recipe else checkpoint
            engine = tmp_path_factory.mktemp("built") / "engine"
            inputs = BuildInputs(source, target(weight_format), dtype="float16")
            facts = engine_builder("openvino_cpu").build(inputs, engine)
            made[recipe, weight_format] = (engine, facts)
        return made[recipe, weight_format]

    return make
