"""A few of the corpus, quantized, built and run: what took other architectures than Llama apart."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("openvino_genai")
pytest.importorskip("modelopt")

import tiny_llama
import tiny_models
import torch
import worker
from transformers import PreTrainedTokenizerFast

from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint
from llm_pipeline.config.quantization import QuantizationRecipe

pytestmark = pytest.mark.slow

CALIBRATION = {"sources": ["calibration/demo.jsonl"], "samples": 16, "maximum_tokens": 32, "batch_size": 16}


def made(root: Path, model: str, **recipe) -> dict:
    return worker.work(root, {"model": model, "recipe": {"name": "tried", **recipe}})


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        ("gpt2", {"weights": "none"}),
        pytest.param("gemma3", {"weights": "int4_awq", "calibration": CALIBRATION}, marks=pytest.mark.thorough),
        ("gpt-neox", {"weights": "fp8", "kv_cache": "fp8", "calibration": CALIBRATION}),
    ],
)
def test_what_is_served_is_what_was_judged_up_to_the_end_of_the_context(model, recipe, tmp_path):
    found = made(tmp_path, model, **recipe)
    assert "error" not in found, found["error"]
    assert found["context"] == tiny_models.CONTEXT
    expected = found["expected"]
    assert max(one["tokens"] for one in expected) + worker.TOKENS == tiny_models.CONTEXT
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "corpus" / model)
    ids = tiny_llama.greedy_engine(Path(found["engine"]), [one["prompt"] for one in expected], worker.TOKENS)
    answers = [tokenizer.decode(one, skip_special_tokens=True) for one in ids]
    differing = sum(answer != one["text"] for answer, one in zip(answers, expected, strict=True))
    assert differing <= (2 if "kv_cache" in recipe else 0)


def test_an_output_head_of_any_name_stays_as_it_is(tmp_path):
    source = tiny_models.make("gpt-neox", tmp_path / "source")
    for weights, exclude in (("int8_weight_only", ["*lm_head*"]), ("int8_weight_only", [])):
        recipe = QuantizationRecipe(name="r", weights=weights, exclude=exclude)
        work = tmp_path / f"kept{len(exclude)}"
        work.mkdir()
        export = worker.quantize(source, recipe, work, torch.float16)
        assert ("embed_out" in Checkpoint(export).layers) is not bool(exclude)
