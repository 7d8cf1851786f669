"""What is wrong with the recipes of a release whatever the target, and what deserves a look."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.catalog.modelopt_recipes import formats_of, known_modelopt_recipe
from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning import host
from llm_pipeline.planning.formats import asked_by
from llm_pipeline.planning.weight_storage import is_excluded, least_effective_bits
from llm_pipeline.quantization.checkpoint_ranks import DecoderSizes, refuse_uneven_ranks
from llm_pipeline.quantization.tensorrt_llm_checkpoint import refuse_unsupported_tensorrt_llm_checkpoint
from llm_pipeline.quantization.whole_blocks import BLOCKWISE, refuse_partial_widths


def check_recipes(loaded: LoadedRelease, facts: ModelFacts | None) -> None:
    """Refuse what cannot be exported of the model, and searches for fewer bits than their formats can reach on it.

    Raises:
        Unsupported: A TensorRT-LLM checkpoint cannot hold the format, or the model does not divide into its ranks;
            layers are no multiple of a format's blocks wide; or the head and what the recipe excludes stay at 16 bits,
            and leave too few for the rest.
    """
    for recipe in loaded.release.recipes:
        refuse_unsupported_tensorrt_llm_checkpoint(recipe)
        if facts is not None:
            _check_sizes(recipe, facts)
            _check_search(loaded, recipe, facts)


def _check_sizes(recipe: QuantizationRecipe, facts: ModelFacts) -> None:
    if _is_blockwise(recipe):
        widths = {name: width for name, width in facts.input_widths() if not is_excluded(name, recipe.exclude)}
        refuse_partial_widths(widths, recipe)
    if recipe.tensorrt_llm_checkpoint:
        sizes = DecoderSizes(
            layers=facts.layers,
            attention_heads=facts.attention_heads,
            key_value_heads=facts.key_value_heads,
            head_size=facts.head_size,
            intermediate_size=facts.intermediate_size,
        )
        refuse_uneven_ranks(recipe, sizes)


def _is_blockwise(recipe: QuantizationRecipe) -> bool:
    """Whether any layer may get a format with blocks of INT4; which layers modelopt's own recipes mix is not known."""
    formats = formats_of(recipe)
    if recipe.modelopt_recipe and not known_modelopt_recipe(recipe.modelopt_recipe).whole_model:
        return False
    return formats <= BLOCKWISE if recipe.modelopt_recipe else bool(formats & BLOCKWISE)


def _check_search(loaded: LoadedRelease, recipe: QuantizationRecipe, facts: ModelFacts) -> None:
    if recipe.search is None:
        return
    bits, least = recipe.search.effective_bits[0], least_effective_bits(facts, recipe)
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
