"""What the model image makes for the verification: real exports of a tiny model, and their answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("modelopt")

from llm_pipeline.artifacts.golden import read_golden
from llm_pipeline.verification import preparation
from llm_pipeline.verification.bench import Prepared

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

import tiny_llama

pytestmark = pytest.mark.slow


def test_formats_are_exported_with_their_answers_and_one_that_cannot_be_made_stops_no_other(tmp_path, monkeypatch):
    def baseline(destination, *_):
        tiny_llama.make_checkpoint(destination)
        return "a tiny Llama", "float16"

    wanted = ("none", "nvfp4", "fp8_engine")
    chosen = [recipe for recipe in preparation.recipes(32) if recipe.name in wanted]
    monkeypatch.setattr(preparation, "_baseline", baseline)
    monkeypatch.setattr(preparation, "_texts", lambda _: (tiny_llama.prompts(4), tiny_llama.prompts(32)))
    monkeypatch.setattr(preparation, "recipes", lambda _: chosen)
    prepared = preparation.prepare(tmp_path / "prepared", None, "main")

    assert Prepared.read(tmp_path / "prepared") == prepared
    refused = {one.name: one.refused for one in prepared.checkpoints}
    assert (refused["none"], refused["fp8_engine"]) == ("", "")
    assert "GPU" in refused["nvfp4"]
    for name in ("none", "fp8_engine"):
        golden = read_golden(tmp_path / "prepared" / name)
        assert [one.prompt for one in golden] == tiny_llama.prompts(4)
    directory = tmp_path / "prepared" / "fp8_engine"
    assert {path.name for path in directory.iterdir()} == {"checkpoint", "golden.jsonl", "tensorrt_llm_checkpoint"}
    metadata = json.loads((directory / "checkpoint" / "hf_quant_config.json").read_text())
    assert metadata["quantization"]["quant_algo"] == "FP8"
    assert (directory / "tensorrt_llm_checkpoint" / "rank0.safetensors").is_file()
