"""Which formats an engine can be compiled with: what its checkpoint holds, and what the target's options need. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.quantization import KvCacheFormat, QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import Target
from llm_pipeline.planning.formats import Support
from llm_pipeline.planning.target_checks import features_problem, ranks_problem
from llm_pipeline.quantization.tensorrt_llm_checkpoint import refuse_unsupported_tensorrt_llm_checkpoint

_YES = Support("yes", "")
_NO_EXPORT = "engines are built from TensorRT-LLM checkpoints, which the recipe does not export"


def compiled_weights(target: Target, recipe: QuantizationRecipe) -> Support:
    """Whether an engine can be compiled with a recipe's weights."""
    if recipe.weights == "none":
        return _YES if recipe.tensorrt_llm_checkpoint else Support("no", _NO_EXPORT)
    if (exported := _exported(recipe, kv_cache="none")).value == "no":
        return exported
    problem = features_problem(target, recipe.weights, "none")
    return Support("no", problem.reason) if problem else _YES


def compiled_kv_cache(target: Target, recipe: QuantizationRecipe) -> Support:
    """Whether an engine can be compiled with a recipe's KV cache; the weights are judged for themselves."""
    if (exported := _exported(recipe, weights="fp8", modelopt_recipe=None)).value == "no":
        return exported
    if features_problem(target, recipe.weights, "none"):
        return _YES
    problem = features_problem(target, recipe.weights, recipe.kv_cache)
    return Support("no", problem.reason) if problem else _YES


def export_problems(target: Target, recipe: QuantizationRecipe) -> Iterator[str]:
    """Why the recipe's export is not the one that the target's engine is built from."""
    if not recipe.tensorrt_llm_checkpoint:
        yield _NO_EXPORT
    elif problem := ranks_problem(target, recipe.tensorrt_llm_ranks):
        yield problem


def export_changes(target: Target, recipe: QuantizationRecipe) -> Iterator[str]:
    """What to write into the recipe, so that it exports what the target's engine is built from."""
    if not recipe.tensorrt_llm_checkpoint:
        yield "tensorrt_llm_checkpoint: true"
    if ranks_problem(target, recipe.tensorrt_llm_ranks):
        wanted = target.parallelism
        yield f"tensorrt_llm_ranks: {{tensor: {wanted.tensor}, pipeline: {wanted.pipeline}}}"


def compiled_formats(
    target: Target, recipe: QuantizationRecipe, formats: Collection[WeightFormat]
) -> tuple[WeightFormat, ...]:
    """Those of some formats of weights that an engine can be compiled with."""
    others = [name for name in formats if name != "none"]
    return tuple(name for name in others if compiled_weights(target, _with(recipe, weights=name)).value == "yes")


def compiled_kv_caches(
    target: Target, weights: WeightFormat, formats: Collection[KvCacheFormat]
) -> tuple[KvCacheFormat, ...]:
    """Those of some formats of the KV cache that an engine with such weights can be compiled with."""
    return tuple(name for name in formats if features_problem(target, weights, name) is None)


def _exported(recipe: QuantizationRecipe, **changes: Any) -> Support:
    """Whether a TensorRT-LLM checkpoint, which engines are built from, can hold what a recipe makes."""
    try:
        refuse_unsupported_tensorrt_llm_checkpoint(_with(recipe, tensorrt_llm_checkpoint=True, **changes))
    except Unsupported as error:
        return Support("no", error.message)
    return _YES


def _with(recipe: QuantizationRecipe, **changes: Any) -> QuantizationRecipe:
    return recipe.model_copy(update=changes)
