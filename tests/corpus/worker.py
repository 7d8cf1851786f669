"""Quantizes, reads back and builds models of the corpus, and says what each should answer; in the model environment.

    python tests/corpus/worker.py ROOT < jobs.jsonl > outcomes.jsonl

A job is `{"model": ..., "recipe": ...}`, the recipe as in its file. Its outcome names the engine and the greedy answers
of the export that was read back, in float32; or the error.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import tiny_models
import torch
from transformers import PreTrainedTokenizerFast

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.quantization.calibration import read_calibration
from llm_pipeline.quantization.export_check import check_export
from llm_pipeline.quantization.modelopt_quantizer import Quantizer
from llm_pipeline.quantization.readback import load_model

TOKENS = 12
CONFIGS = Path(__file__).parents[2] / "configs"
CPU = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")


def prompts(tokenizer: Any, context: int) -> list[str]:
    """Short ones, and some that leave exactly the answer's room in the context."""
    words = " ".join(tiny_models.texts(60, seed=23)).split()
    return [*tiny_models.texts(12, seed=17), *(_filling(tokenizer, words[at:], context - TOKENS) for at in (0, 40, 80))]


def _filling(tokenizer: Any, words: list[str], tokens: int) -> str:
    text, fitting = "", ""
    for word in words:
        text = f"{text} {word}".strip()
        if len(tokenizer(text).input_ids) > tokens:
            break
        fitting = text
    while len(tokenizer(fitting + " a").input_ids) <= tokens:
        fitting += " a"
    return fitting


def quantize(source: Path, recipe: QuantizationRecipe, work: Path, dtype: torch.dtype) -> Path:
    """The recipe's export, checked."""
    if recipe.weights == "none":
        return source
    texts = CONFIGS / recipe.calibration.sources[0] if recipe.calibration else None
    data = read_calibration(source, recipe, texts)
    export = work / "checkpoint"
    expected = Quantizer(source, recipe, data, dtype=dtype, device="cpu").export(export)
    check_export(source, export, recipe, expected, dtype=dtype, device="cpu")
    return export


def answers(export: Path, context: int, dtype: torch.dtype = torch.float32) -> list[dict[str, Any]]:
    """Prompt, its tokens and the greedy answer, the end token ignored."""
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(export)
    model = load_model(export, dtype)
    found = []
    for prompt in prompts(tokenizer, context):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            whole = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
                                   eos_token_id=None, pad_token_id=1)  # fmt: skip
        text = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
        found.append({"prompt": prompt, "tokens": ids.shape[1], "text": text})
    return found


def work(root: Path, job: dict[str, Any]) -> dict[str, Any]:
    """One job, to its engine; what it needed on the way is removed."""
    name, source = f"{job['model']}-{job['recipe']['name']}", root / "corpus" / job["model"]
    scratch = root / "work" / name
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    if not source.is_dir():
        tiny_models.make(job["model"], source)
    dtype = tiny_models.CORPUS[job["model"]].dtype
    recipe = QuantizationRecipe.model_validate(job["recipe"])
    stage, began = "quantize", time.monotonic()
    try:
        export = quantize(source, recipe, scratch, dtype)
        stage = "read back"
        expected = answers(export, tiny_models.CONTEXT)
        stage = "build"
        inputs = BuildInputs(export, CPU, dtype=str(dtype).removeprefix("torch."))
        facts = engine_builder("openvino_cpu").build(inputs, scratch / "engine")
    except PipelineError as error:
        return {**job, "error": f"{stage}: {error.message}", "kind": type(error).__name__}
    except Exception as error:  # noqa: BLE001 - the driver tells it as what it is: a fault
        traceback.print_exc()
        return {**job, "error": f"{stage}: {error!r}"[:500], "kind": "fault"}
    return {**job, "engine": str(scratch / "engine"), "context": facts.context_length, "expected": expected,
            "seconds": round(time.monotonic() - began, 1)}  # fmt: skip


def main() -> None:
    """Work on one job a line."""
    torch.set_num_threads(1)
    root, answer = Path(sys.argv[1]), sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        answer.write(json.dumps(work(root, json.loads(line))) + "\n")
        answer.flush()


if __name__ == "__main__":
    main()
