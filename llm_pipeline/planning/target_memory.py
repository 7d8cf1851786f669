"""Whether a recipe fits a target: the memory model of its engine, and what to change when it does not fit."""

from __future__ import annotations

from math import ceil

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import EngineLimits, Parallelism, Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import Refused, platform_of
from llm_pipeline.planning.formats import CPU_FORMATS, legal_weights
from llm_pipeline.planning.host import total_memory_bytes
from llm_pipeline.planning.memory import Engine, MemoryFit, fit_memory
from llm_pipeline.planning.weight_storage import format_bits

_GPU_RUNTIME_BYTES = 2 * 2**30
"""CUDA context, communication buffers, CUDA graphs and workspaces of one rank; an estimate."""

_CPU_RUNTIME_BYTES = 2**29
"""The server, its Python process and OpenVINO; an estimate."""

_TENSOR_STEPS = (1, 2, 4, 8, 16)


def judge_memory(
    target: Target, recipe: QuantizationRecipe, facts: ModelFacts
) -> tuple[MemoryFit | None, Refused | None]:
    """The memory of one rank, and the refusal when it does not hold what the target's limits ask for.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if split := _cannot_split(facts, target.parallelism):
        return None, split
    fit = _fit(target, recipe, facts, target.parallelism)
    if fit.fits:
        return fit, None
    return fit, Refused(reason=_shortage(fit, target, facts), nearest=_advice(fit, target, recipe, facts))


def engine_memory(target: Target) -> Engine:
    """The memory model of a target's engine."""
    if target.accelerator == "cpu":
        # The engine computes in float32 and keeps its KV cache so, for results that repeat exactly.
        return Engine(
            capacity=total_memory_bytes(),
            runtime=_CPU_RUNTIME_BYTES,
            unquantized_bytes=4,
            kv_bytes=4,
            quantizes_kv=False,
        )
    return Engine(
        capacity=find_gpu(target.accelerator).usable_bytes,
        runtime=_GPU_RUNTIME_BYTES,
        kv_cache=target.runtime.kv_cache,
        beam_width=target.runtime.beam_width,
    )


def _cannot_split(facts: ModelFacts, parallelism: Parallelism) -> Refused | None:
    heads, tensor, pipeline = facts.attention_heads, parallelism.tensor, parallelism.pipeline
    if heads % tensor:
        nearest = max(number for number in range(1, tensor) if heads % number == 0)
        reason = f"{heads} attention heads cannot be split over tensor parallelism {tensor}"
        return Refused(reason=reason, nearest=f"parallelism.tensor: {nearest}")
    if pipeline > facts.layers:
        reason = f"{facts.layers} layers cannot be split over pipeline parallelism {pipeline}"
        return Refused(reason=reason, nearest=f"parallelism.pipeline: {facts.layers}")
    expert = parallelism.expert or 1
    if expert > 1 and not facts.is_mixture:
        return Refused(reason="the model has no experts to be spread", nearest="no parallelism.expert")
    if facts.is_mixture and facts.experts % expert:
        nearest = max(number for number in range(1, expert) if facts.experts % number == 0)
        reason = f"{facts.experts} experts cannot be spread over expert parallelism {expert}"
        return Refused(reason=reason, nearest=f"parallelism.expert: {nearest}")
    return None


def _fit(target: Target, recipe: QuantizationRecipe, facts: ModelFacts, parallelism: Parallelism) -> MemoryFit:
    return fit_memory(facts, recipe, engine_memory(target), _limits(target, facts), parallelism)


def _limits(target: Target, facts: ModelFacts) -> EngineLimits:
    """The target's limits, with requests no longer than the model's own context."""
    tokens = min(target.limits.maximum_tokens_per_request, facts.context_length)
    return target.limits.model_copy(update={"maximum_tokens_per_request": tokens})


def _shortage(fit: MemoryFit, target: Target, facts: ModelFacts) -> str:
    limits, kv_cache = _limits(target, facts), target.runtime.kv_cache
    share = f"{kv_cache.free_memory_fraction:.0%} of the rest"
    if _is_capped(fit, target):
        share = f"runtime.kv_cache.maximum_tokens {kv_cache.maximum_tokens}"
    return (
        f"{fit.weights / 1e9:.1f} GB weights + {fit.runtime / 1e9:.1f} GB runtime of {fit.capacity / 1e9:.1f} GB "
        f"leave {fit.kv_available / 1e9:.1f} GB for the KV cache ({share}), but "
        f"maximum_sequences {limits.maximum_sequences} x {limits.maximum_tokens_per_request} tokens a request "
        f"need {fit.kv_wanted / 1e9:.1f} GB"
    )


def _is_capped(fit: MemoryFit, target: Target) -> bool:
    """Whether it is the options of the KV cache that limit it, and not the memory."""
    return fit.kv_available == (target.runtime.kv_cache.maximum_tokens or 0) * fit.kv_per_token > 0


def _advice(fit: MemoryFit, target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> str:
    if fit.largest_batch:
        return f"limits.maximum_sequences: {fit.largest_batch}"
    if _is_capped(fit, target):
        return f"runtime.kv_cache.maximum_tokens: {ceil(fit.kv_wanted / fit.kv_per_token)}"
    pipeline = target.parallelism.pipeline
    for tensor in _TENSOR_STEPS:
        if not target.parallelism.tensor < tensor <= target.gpus_per_node or facts.attention_heads % tensor:
            continue
        parallelism = Parallelism(tensor=tensor, pipeline=pipeline)
        if target.accelerator != "cpu" and _fit(target, recipe, facts, parallelism).fits:
            return f"parallelism.tensor: {tensor} with accelerator_count: {tensor * pipeline}"
    if smaller := _smaller_format(target, recipe, facts):
        return f"weights: {smaller}, or an accelerator with more memory"
    return "an accelerator with more memory: no format that runs on this one makes the model fit"


def _smaller_format(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> WeightFormat | None:
    """The largest format that runs there and makes the model fit, other than the recipe's."""
    if facts.stored_format:
        return None
    formats = CPU_FORMATS if target.accelerator == "cpu" else legal_weights(platform_of(target), "bfloat16")
    fitting = [name for name in formats if name != recipe.weights and fits_with(target, recipe, facts, name)]
    return max(fitting, key=format_bits, default=None)


def fits_with(target: Target, recipe: QuantizationRecipe, facts: ModelFacts, weights: WeightFormat) -> bool:
    """Whether a target holds what its limits ask for, with the weights in another format."""
    other = recipe.model_copy(update={"weights": weights, "search": None, "modelopt_recipe": None})
    return judge_fit(target, other, facts)


def judge_fit(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> bool:
    """Whether a recipe fits a target as it is configured."""
    if _cannot_split(facts, target.parallelism):
        return False
    return _fit(target, recipe, facts, target.parallelism).fits
