"""How long GPUs will be busy with quantization and scoring: a model on top of what was measured on one H200. Pure.

Llama-3-8B shapes on one H200: 34,000 tokens a second forward, 512 x 512 tokens calibrated in 9.2 s (FP8, NVFP4) and
11.0 s (SmoothQuant) where a plain pass takes 7.7 s; 64 x 512 under AWQ in 52.6 s, 55 times a plain pass; 16.06 GB
loaded in 1.8 s; 9.08 GB exported in 7.8 s; one step of generation with default settings in some 0.09 s at up to 64
requests. Other models scale with their parameters (steps with their layers), other GPUs with their 16-bit peak.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_pipeline.catalog.tables import Gpu
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.formats import asked_by
from llm_pipeline.planning.memory import weight_bytes
from llm_pipeline.planning.task_pool import TaskItems

_TOKENS_A_SECOND = 34_000.0
_PARAMETERS = 8.03e9
_LAYERS = 32
_TFLOPS = 989.0
_STEP_SECONDS = 0.09
_LOADED_A_SECOND = 16.06e9 / 1.8
_EXPORTED_A_SECOND = 9.08e9 / 7.8
_PASSES: Mapping[WeightFormat, float] = {
    "fp8": 9.2 / 7.7,
    "nvfp4": 9.2 / 7.7,
    "int8_smoothquant": 11.0 / 7.7,
    "int4_awq": 55.0,
    "w4a8_awq": 55.0,
    "nvfp4_awq": 55.0,
}
"""Time of a calibration, by that of a plain pass over the same tokens; AWQ's others are taken as INT4's."""

_BACKWARD_PASSES = 3.0
"""A score by gradients: the pass itself, once more for the checkpointed layer, and back; formats come on top."""

_PLAIN = QuantizationRecipe(name="none", weights="none")


def forward_seconds(facts: ModelFacts, gpu: Gpu, tokens: float) -> float:
    """A plain forward pass over so many tokens."""
    flops = (gpu.dense_tflops["bf16"] or 0.0) / _TFLOPS
    return tokens / (_TOKENS_A_SECOND * flops * _PARAMETERS / facts.active_parameters)


def quantization_seconds(facts: ModelFacts, recipe: QuantizationRecipe, gpu: Gpu) -> float | None:
    """Loading, calibrating (at most, with texts of full length) and exporting; None where nothing was measured."""
    if recipe.weights == "none":
        return 0.0
    files = weight_bytes(facts, _PLAIN) / _LOADED_A_SECOND + weight_bytes(facts, recipe) / _EXPORTED_A_SECOND
    passes = _passes(recipe)
    if recipe.calibration is None or passes is None:
        return None if recipe.calibration else files
    tokens = recipe.calibration.samples * recipe.calibration.maximum_tokens
    return files + forward_seconds(facts, gpu, tokens * passes)


def scoring_seconds(facts: ModelFacts, task: TaskItems, gpu: Gpu, batch: int) -> float | None:
    """Asking all items of a task once; None where too little is known of it."""
    if task.items is None or task.prompt_tokens is None or task.output_tokens is None:
        return None
    written = task.items / batch * task.output_tokens * _STEP_SECONDS * facts.layers / _LAYERS
    return forward_seconds(facts, gpu, task.items * task.prompt_tokens) + written


def _passes(recipe: QuantizationRecipe) -> float | None:
    """Plain passes over the calibration data that take as long."""
    formats = asked_by(recipe).weights
    calibrated = sum(_PASSES.get(name, 1.0) for name in formats)
    if recipe.search is None or recipe.calibration is None:
        return calibrated
    if recipe.search.method == "kl_div":
        return None
    scored = min(1.0, recipe.search.score_samples / recipe.calibration.samples)
    return calibrated + scored * (_BACKWARD_PASSES + len(formats))
