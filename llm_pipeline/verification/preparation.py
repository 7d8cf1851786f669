"""Checkpoints for the steps, made in the model image: a small model, our quantized exports of it, and their answers.

Exports come from the same parts as the quantize stage's, and are read back by the same code as the accuracy gate's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.golden import GoldenPrompt, write_golden
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.quantization import CALIBRATED, Calibration, CalibrationSource, QuantizationRecipe
from llm_pipeline.demo.tasks import distinct, stream
from llm_pipeline.engines.builder import BaselinePrecision
from llm_pipeline.verification.bench import (
    CHECKPOINT_DIRECTORY,
    TENSORRT_LLM_DIRECTORY,
    Prepared,
    PreparedCheckpoint,
)

log = get_logger(__name__)

_CALIBRATION_FILE = "calibration.jsonl"
_GOLDEN_TOKENS = 16
_GOLDEN_PROMPTS = 24
_CALIBRATION_TEXTS = 64
_TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - the variable's name
PROMPTS = tuple(
    f"{begin} {end}"
    for begin in ("The capital of France is", "Once upon a time", "To cook rice, first", "Water boils at", "In 1969,",
                  "The three primary colours are", "A prime number is", "The largest planet of our solar system is")
    for end in ("", "and the next thing to know is", "which means that")
)  # fmt: skip
"""For a model of the hub."""


def recipes(calibration_texts: int) -> tuple[QuantizationRecipe, ...]:
    """The baseline, and the formats that a release on GPUs chooses from."""
    formats: dict[str, dict[str, Any]] = {
        "none": {"weights": "none"},
        "fp8": {"weights": "fp8"},
        "fp8_kv_fp8": {"weights": "fp8", "kv_cache": "fp8"},
        "nvfp4": {"weights": "nvfp4", "kv_cache": "fp8"},
        "int4_awq": {"weights": "int4_awq"},
        "fp8_engine": {"weights": "fp8", "tensorrt_llm_checkpoint": True},
    }
    source = CalibrationSource(dataset=_CALIBRATION_FILE)
    calibration = Calibration(sources=(source,), samples=calibration_texts, maximum_tokens=64)
    return tuple(
        QuantizationRecipe(
            name=name, calibration=calibration if options["weights"] in CALIBRATED else None, **options
        )
        for name, options in formats.items()
    )  # fmt: skip


def prepare(output: Path, model: str | None, revision: str) -> Prepared:
    """Make everything in a new directory.

    Args:
        output: Where it goes.
        model: A model of the hub; None trains the demo model.
        revision: Of the hub's model.

    Raises:
        PipelineError: The model cannot be had. A format that cannot be made is recorded, and the others go on.
    """
    output.mkdir(parents=True)
    name, dtype = _baseline(output / "source", model, revision)
    prompts, texts = _texts(model)
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (output / _CALIBRATION_FILE).write_text("".join(lines), encoding="utf-8")
    checkpoints = tuple(_prepare(output, recipe, prompts, dtype) for recipe in recipes(len(texts)))
    prepared = Prepared(model=name, dtype=dtype, checkpoints=checkpoints)
    prepared.write(output)
    return prepared


def _baseline(destination: Path, model: str | None, revision: str) -> tuple[str, BaselinePrecision]:
    if model is None:
        from llm_pipeline.demo.train import Training, train_demo_model

        train_demo_model(destination, Training())
        return "the demo model, trained here", "float16"
    from llm_pipeline.hub.access import connect
    from llm_pipeline.hub.download import download_model
    from llm_pipeline.hub.hub_source import HubSource

    source = HubSource(connect(None, _TOKEN_VARIABLE))
    pinned = source.resolve(model, revision)
    download_model(source, pinned, destination)
    return f"{pinned.id}@{pinned.commit}", "bfloat16"


def _texts(model: str | None) -> tuple[list[str], list[str]]:
    """Golden prompts, and texts for calibration."""
    if model is not None:
        return list(PROMPTS), list(PROMPTS)
    items = list(islice(distinct(stream(1, held_out=True)), _GOLDEN_PROMPTS + _CALIBRATION_TEXTS))
    return [item.prompt for item in items[:_GOLDEN_PROMPTS]], [item.text for item in items[_GOLDEN_PROMPTS:]]


def _prepare(
    output: Path, recipe: QuantizationRecipe, prompts: Sequence[str], dtype: BaselinePrecision
) -> PreparedCheckpoint:
    directory = output / recipe.name
    directory.mkdir()
    log.info("preparing", recipe=recipe.name)
    try:
        _export(output, recipe, directory, dtype)
        write_golden(directory, _answers(directory / CHECKPOINT_DIRECTORY, prompts, dtype))
    except (PipelineError, RuntimeError, OSError, ValueError, LookupError) as error:
        log.exception("this format could not be made", recipe=recipe.name)
        return PreparedCheckpoint(recipe=recipe, refused=f"{type(error).__name__}: {error}")
    return PreparedCheckpoint(recipe=recipe)


def _export(output: Path, recipe: QuantizationRecipe, directory: Path, dtype: BaselinePrecision) -> None:
    source, checkpoint = output / "source", directory / CHECKPOINT_DIRECTORY
    if recipe.weights == "none":
        shutil.copytree(source, checkpoint)
        return
    import torch

    from llm_pipeline.quantization.calibration import read_calibration
    from llm_pipeline.quantization.export_check import check_export
    from llm_pipeline.quantization.modelopt_quantizer import Quantizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = read_calibration(source, recipe, output / _CALIBRATION_FILE)
    precision = getattr(torch, dtype)
    quantizer = Quantizer(source, recipe, data, dtype=precision, device=device)
    if recipe.tensorrt_llm_checkpoint:
        quantizer.export_tensorrt_llm(directory / TENSORRT_LLM_DIRECTORY)
    logits = quantizer.export(checkpoint)
    check_export(source, checkpoint, recipe, logits, dtype=precision, device=device)


def _answers(checkpoint: Path, prompts: Sequence[str], dtype: BaselinePrecision) -> list[GoldenPrompt]:
    """Greedy answers of the exported numbers, prompt by prompt."""
    import torch

    from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
    from llm_pipeline.quantization.readback import load_model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = load_tokenizer(checkpoint)
    model = load_model(checkpoint, getattr(torch, dtype), device)
    golden = []
    for prompt in prompts:
        given = tokenizer(prompt, return_tensors="pt").to(device)
        with torch.inference_mode():
            whole = model.generate(
                input_ids=given.input_ids, attention_mask=given.attention_mask, max_new_tokens=_GOLDEN_TOKENS,
                do_sample=False, temperature=None, top_p=None, top_k=None,
            )  # fmt: skip
        text = tokenizer.decode(whole[0, given.input_ids.shape[1] :], skip_special_tokens=True)
        if text.strip():
            golden.append(GoldenPrompt(prompt=prompt, completion=text, maximum_tokens=_GOLDEN_TOKENS))
    return golden
