"""What is wrong with the recipes of a release whatever the target, and what deserves a look."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.errors import Unsupported
from llm_pipeline.planning import host
from llm_pipeline.planning.formats import asked_by
from llm_pipeline.planning.model_shape import ModelShape
from llm_pipeline.planning.weight_storage import least_effective_bits
from llm_pipeline.quantization.modelopt_recipes import known_modelopt_recipe
from llm_pipeline.quantization.tensorrt_llm_checkpoint import refuse_unsupported_tensorrt_llm_checkpoint


def check_recipes(loaded: LoadedRelease, shape: ModelShape | None) -> None:
    """Refuse what can be exported nowhere, and searches for fewer bits than their formats can reach on the model.

    Raises:
        Unsupported: A TensorRT-LLM checkpoint cannot hold the format; or the head and what the recipe excludes stay at
            16 bits, and leave too few for the rest.
    """
    for recipe in loaded.release.recipes:
        refuse_unsupported_tensorrt_llm_checkpoint(recipe)
        if recipe.search is None or shape is None:
            continue
        bits, least = recipe.search.effective_bits[0], least_effective_bits(shape, recipe)
        if bits < least:
            raise Unsupported(
                f"effective_bits {bits:g} cannot be reached on {loaded.release.model.id}: with all that may be "
                f"quantized in {', '.join(recipe.search.formats)}, the mean over all linear layers is {least:.2f}",
                where=str(loaded.configs_root / "quantization" / f"{recipe.file_name}.yaml"),
                hint=f"search.effective_bits from {ceil(least * 10) / 10:g} on, or formats of fewer bits",
            )


def recipe_warnings(loaded: LoadedRelease) -> tuple[str, ...]:
    """What works, though perhaps not as meant."""
    return (*_cuda_warnings(loaded), *(line for recipe in loaded.release.recipes for line in _of(recipe, loaded)))


def _cuda_warnings(loaded: LoadedRelease) -> Iterator[str]:
    cuda = [recipe.name for recipe in loaded.release.recipes if asked_by(recipe).needs_cuda]
    if cuda and not loaded.deployment.quantization_host and not host.has_nvidia_gpu():
        yield (
            f"{', '.join(cuda)}: quantization needs a CUDA device in the model environment; this machine has none, and "
            f"deployment {loaded.deployment.name} names no quantization_host"
        )


def _of(recipe: QuantizationRecipe, loaded: LoadedRelease) -> Iterator[str]:
    engines = {target.engine for target in loaded.release.targets}
    if recipe.tensorrt_llm_checkpoint and "tensorrt_llm_engine" not in engines:
        yield f"{recipe.name}: tensorrt_llm_checkpoint is read by engine tensorrt_llm_engine, which no target has"
    if recipe.modelopt_recipe and (made_for := known_modelopt_recipe(recipe.modelopt_recipe).made_for):
        yield f"{recipe.name}: modelopt wrote {recipe.modelopt_recipe} for {made_for}, not for every model"
