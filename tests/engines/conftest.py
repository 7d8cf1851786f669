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


@pytest.fixture
def target():
    from llm_pipeline.config.target import Target

    def make(weight_format="native", **changes):
        fields = {"name": "cpu", "accelerator": "cpu", "accelerator_count": 0, "engine": "openvino_cpu"}
        return Target(**{**fields, "weight_format": weight_format, **changes})

    return make
