"""The ladder: in which order a release's recipes are tried on each of its targets. Pure."""

from __future__ import annotations

from llm_pipeline.config.quantization import WEIGHT_BITS, QuantizationRecipe
from llm_pipeline.config.release import ResolvedRelease

_UNQUANTIZED_BITS = 16.0


def climbing_order(release: ResolvedRelease) -> tuple[str, ...]:
    """Names of all recipes, cheapest first over all targets together; equally cheap ones as the config has them."""
    return tuple(recipe.name for recipe in sorted(release.recipes, key=bits_per_weight))


def bits_per_weight(recipe: QuantizationRecipe) -> float:
    """Mean bits of a stored weight that the recipe quantizes, without its scales."""
    if recipe.search is not None:
        return recipe.search.effective_bits[0]
    return float(WEIGHT_BITS[recipe.weights] or _UNQUANTIZED_BITS)
