"""A real, briefly trained checkpoint, and what modelopt makes of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from llm_pipeline.config.quantization import QuantizationRecipe

sys.path.insert(0, str(Path(__file__).parents[1] / "demo"))
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    pytest.importorskip("torch")
    import briefly_trained

    return briefly_trained.checkpoint(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def recipe():
    def read(name):
        content = yaml.safe_load((CONFIGS / "quantization" / f"{name}.yaml").read_text())
        return QuantizationRecipe(name=name, **content)

    return read


@pytest.fixture(scope="session")
def quantized(source, recipe, tmp_path_factory):
    """Exported checkpoints by recipe, each made when it is first asked for."""
    import torch

    from llm_pipeline.quantization.modelopt_quantizer import quantize_checkpoint

    made = {}

    def make(name):
        if name not in made:
            destination = tmp_path_factory.mktemp(name) / "checkpoint"
            file = CONFIGS / "calibration" / "demo.jsonl"
            facts = quantize_checkpoint(source, destination, recipe(name), file, dtype=torch.float16)
            made[name] = destination, facts
        return made[name]

    return make
