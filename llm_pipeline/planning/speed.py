"""How fast a recipe is decoded on a GPU, beside the unquantized model there: a roofline model. Pure.

    relative_speed(facts, target, recipe, requests=64)  # 0.87: slower than the unquantized model

A pass over `rows` tokens takes, for each matrix, the longer of reading it at `_BANDWIDTH` of the memory's peak and of
multiplying at `_EFFICIENCY` of the format's peak. Weights that no tensor core takes as they are stored are unpacked
before: at one pace in the kernels for few rows, at a slower one, again for each `_TILE` rows, in those for many.
A decoding step reads the KV cache, too, and takes `_LAYER_SECONDS` a layer for what does not grow with anything.
A request is one pass over its prompt and one step for each token that it puts out.

The constants were fitted to twelve figures that NVIDIA published: Llama-3.1-8B on one H200, 2048 tokens in and 128
out, TensorRT-LLM 0.15, batches of 1, 8 and 64 (`examples/benchmark.md` of NVIDIA/Model-Optimizer, a2fbac7b). They are
met within 8 %, their ratios to BF16 within 0.12. Of 70B, which they were not fitted to, formats stand to each other as
published within a factor of 1.5, and all are underestimated, by up to 40 % at batch 64. What the model does not know:
other GPUs (scaled by their peaks), other kernels than those of that version, communication between GPUs, and how well
FP4 and INT8 tensor cores are used (taken as FP8's). Use it to rank recipes, not to promise a speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Literal, NamedTuple

from llm_pipeline.catalog.tables import Gpu, find_gpu
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.memory import kv_bytes_per_token, kv_element_bytes
from llm_pipeline.planning.weight_storage import (
    Share,
    head_parameters,
    layer_parameters,
    mixture,
    stored_bytes,
    touched_parameters,
)

_BANDWIDTH = 0.9
_EFFICIENCY = {16: 0.5, 8: 0.34}
_LAYER_SECONDS = 60e-6
_FITTED_TFLOPS = 989.0
_FEW_ROWS = 4
_UNPACKED_FEW = 9e12
_UNPACKED_MANY = 1.4e12
_UNPACKED_TO_FP8 = 1.5
_TILE = 1500
"""Weights unpacked a second by a GPU of `_FITTED_TFLOPS` at 16 bit; to FP8 it is faster by a factor."""

Unit = Literal["bf16", "fp8", "int8", "fp4"]

UNITS: Mapping[WeightFormat, Unit] = {
    "fp8": "fp8",
    "fp8_per_channel_token": "fp8",
    "fp8_block": "fp8",
    "w4a8_awq": "fp8",
    "int8_smoothquant": "int8",
    "nvfp4": "fp4",
    "nvfp4_awq": "fp4",
    "mxfp4": "fp4",
}
"""Tensor cores that multiply; the 16-bit ones for every other format."""

_UNPACKED: frozenset[WeightFormat] = frozenset({"int8_weight_only", "int4_blockwise", "int4_awq", "w4a8_awq"})


class Tokens(NamedTuple):
    """Tokens of one request; as given, those of the figures that the model is fitted to."""

    prompt: int = 2048
    output: int = 128


PUBLISHED = Tokens()


def relative_speed(facts: ModelFacts, target: Target, recipe: QuantizationRecipe, requests: int) -> float | None:
    """Output tokens a second under a recipe, by those of the unquantized model; None on a CPU.

    Args:
        facts: The model.
        target: Where it is served.
        recipe: How it is quantized.
        requests: Requests decoded together, as long as `PUBLISHED`.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    quantized = tokens_per_second(facts, target, recipe, requests)
    plain = tokens_per_second(facts, target, QuantizationRecipe(name="none", weights="none"), requests)
    return quantized / plain if quantized and plain else None


def tokens_per_second(
    facts: ModelFacts, target: Target, recipe: QuantizationRecipe, requests: int, tokens: Tokens = PUBLISHED
) -> float | None:
    """Output tokens a second of all requests together; None on a CPU.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if target.accelerator == "cpu":
        return None
    model = _Model(facts, recipe, find_gpu(target.accelerator), target.parallelism.world_size)
    seconds = model.prompt_seconds(requests, tokens.prompt) + tokens.output * model.step_seconds(requests, tokens)
    return requests * tokens.output / seconds


class _Model(NamedTuple):
    """Times of one engine, in seconds; the ranks share all work evenly and never wait for each other."""

    facts: ModelFacts
    recipe: QuantizationRecipe
    gpu: Gpu
    ranks: int

    def prompt_seconds(self, requests: int, tokens: int) -> float:
        """One pass over all prompts; attention looks back at half of each on average."""
        attention = 2 * self.facts.layers * self.facts.attention_heads * self.facts.head_size * requests * tokens**2
        return self._layers(requests * tokens) + attention / self._peak("bf16") / self.ranks + self._fixed()

    def step_seconds(self, requests: int, tokens: Tokens) -> float:
        """One more token of every request, at half of its output."""
        held = requests * (tokens.prompt + tokens.output / 2)
        cache = held * kv_bytes_per_token(self.facts, kv_element_bytes(self.recipe)) / self._bandwidth() / self.ranks
        head = self._matrices(head_parameters(self.facts, self.recipe), requests)
        return self._layers(requests) + head + cache + self._fixed()

    def _layers(self, rows: int) -> float:
        """Of a mixture, all experts that the rows choose are read, and each row is multiplied with its own."""
        touched = touched_parameters(self.facts, self.recipe.exclude, rows)
        active = layer_parameters(self.facts, self.recipe.exclude, active=True)
        return self._matrices(touched, rows, active)

    def _matrices(self, read: tuple[int, int], rows: int, multiplied: tuple[int, int] | None = None) -> float:
        (quantized, kept), (active, active_kept) = read, multiplied or read
        mixed = (
            self._format(ceil(quantized * share.fraction), ceil(active * share.fraction), share.weights, rows)
            for share in mixture(self.facts, self.recipe)
        )
        return sum(mixed) + self._format(kept, active_kept, "none", rows)

    def _format(self, read: int, multiplied: int, weights: WeightFormat, rows: int) -> float:
        size = stored_bytes(read, (Share(weights, 1.0),))
        multiplying = 2 * multiplied * rows / self._peak(UNITS.get(weights, "bf16"))
        return (max(size / self._bandwidth(), multiplying) + self._unpacking(read, weights, rows)) / self.ranks

    def _unpacking(self, parameters: int, weights: WeightFormat, rows: int) -> float:
        if weights not in _UNPACKED:
            return 0.0
        pace = _UNPACKED_FEW if rows <= _FEW_ROWS else _UNPACKED_MANY / max(1.0, rows / _TILE)
        faster = _UNPACKED_TO_FP8 if weights == "w4a8_awq" else 1.0
        return parameters / (pace * faster * (self.gpu.dense_tflops["bf16"] or 0.0) / _FITTED_TFLOPS)

    def _peak(self, unit: Unit) -> float:
        """Operations a second that are reached; GPUs without a unit compute at 16 bit."""
        peak = self.gpu.int8_tops_dense if unit == "int8" else self.gpu.dense_tflops.get(unit)
        if peak is None or unit == "bf16":
            return (self.gpu.dense_tflops["bf16"] or 0.0) * 1e12 * _EFFICIENCY[16]
        return peak * 1e12 * _EFFICIENCY[8]

    def _bandwidth(self) -> float:
        return self.gpu.mem_bw_gb_s * 1e9 * _BANDWIDTH

    def _fixed(self) -> float:
        return self.facts.layers * _LAYER_SECONDS
