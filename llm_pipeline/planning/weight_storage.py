"""How formats store the weights that they quantize: bits, scales, and how an AutoQuantize search mixes them. Pure.

A search is asked for mean bits of a weight, counted by modelopt over all linear modules, the head and the excluded
ones at 16 bits among them. Which layer gets which format is known only once the search has run; planning mixes the
two formats whose bits are next to the mean that is left for the layers that may be quantized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from llm_pipeline.catalog.modelopt_recipes import known_modelopt_recipe
from llm_pipeline.catalog.output_head import keeps_head
from llm_pipeline.config.quantization import WEIGHT_BITS, QuantizationRecipe, WeightFormat
from llm_pipeline.model_facts.facts import ModelFacts

HALF_PRECISION = 2
"""Bytes of one float16 or bfloat16 element."""

_UNQUANTIZED_BITS = 8.0 * HALF_PRECISION


class _Scales(NamedTuple):
    """The scale that each group of elements shares."""

    group: int
    scale_bytes: int


_SCALES: Mapping[WeightFormat, _Scales] = {
    "int4_blockwise": _Scales(group=128, scale_bytes=4),
    "int4_awq": _Scales(group=128, scale_bytes=4),
    "w4a8_awq": _Scales(group=128, scale_bytes=4),
    "nvfp4": _Scales(group=16, scale_bytes=1),
    "nvfp4_awq": _Scales(group=16, scale_bytes=1),
    "mxfp4": _Scales(group=32, scale_bytes=1),
}
"""modelopt's defaults, as its exports hold them: the scales of INT4 in 32 bit, whatever the model's precision. Those
of whole tensors, channels and 128 x 128 blocks are too few to count."""

_SEARCHED_BITS: Mapping[WeightFormat, float] = {"nvfp4": 4.5, "nvfp4_awq": 4.5}
"""Bits that a search of modelopt counts with, where they are not those of the stored weight."""


class Share(NamedTuple):
    """A fraction of the weights that a recipe may quantize, and the format that they get."""

    weights: WeightFormat
    fraction: float


def format_bits(weights: WeightFormat) -> float:
    """Bits of a stored weight without its scales; those of an unquantized one where the format does not say."""
    return float(WEIGHT_BITS[weights] or _UNQUANTIZED_BITS)


def bits_per_weight(recipe: QuantizationRecipe) -> float:
    """Mean bits of a stored weight, without its scales, as far as the recipe alone says.

    Raises:
        ConfigError: The recipe names one of modelopt's that is unknown or cannot be used.
    """
    if recipe.modelopt_recipe is not None:
        return float(known_modelopt_recipe(recipe.modelopt_recipe).bits)
    return recipe.search.effective_bits[0] if recipe.search else format_bits(recipe.weights)


def stored_bytes(parameters: int, shares: Sequence[Share]) -> int:
    """Bytes of weights that are stored in some mixture of formats, their scales included."""
    return sum(_format_bytes(ceil(parameters * share.fraction), share.weights) for share in shares)


def mixture(facts: ModelFacts, recipe: QuantizationRecipe) -> tuple[Share, ...]:
    """Formats of the weights that the recipe may quantize.

    modelopt's own recipes that mix formats, or leave layers as they are, count as unquantized, which they never exceed.

    Raises:
        ConfigError: The recipe names one of modelopt's that is unknown or cannot be used.
    """
    if recipe.modelopt_recipe is not None:
        known = known_modelopt_recipe(recipe.modelopt_recipe)
        return (Share(known.formats[0] if known.whole_model and len(known.formats) == 1 else "none", 1.0),)
    if recipe.search is None:
        return (Share(recipe.weights, 1.0),)
    bits = _bits_left(facts, recipe)
    by_bits: dict[float, WeightFormat] = {_UNQUANTIZED_BITS: "none"}
    for name in reversed(recipe.search.formats):
        by_bits[searched_bits(name)] = name
    for low, high in pairwise(sorted(by_bits)):
        if bits < high:
            fraction = min(1.0, (high - bits) / (high - low))
            return (Share(by_bits[low], fraction), Share(by_bits[high], 1.0 - fraction))
    return (Share("none", 1.0),)


def least_effective_bits(facts: ModelFacts, recipe: QuantizationRecipe) -> float:
    """The fewest mean bits that a recipe's search can reach on a model."""
    quantized, kept = _searched_parameters(facts, recipe)
    least = min(searched_bits(name) for name in (recipe.search.formats if recipe.search else (recipe.weights,)))
    return (quantized * least + kept * _UNQUANTIZED_BITS) / (quantized + kept)


def searched_bits(weights: WeightFormat) -> float:
    """Bits of a weight as a search counts them."""
    return _SEARCHED_BITS.get(weights, format_bits(weights))


def is_excluded(name: str, exclude: Sequence[str]) -> bool:
    """Whether one of the patterns keeps a module at the baseline's precision."""
    return any(fnmatchcase(name, pattern) for pattern in exclude)


@cache
def layer_parameters(facts: ModelFacts, exclude: tuple[str, ...], *, active: bool = False) -> tuple[int, int]:
    """Parameters of the linear modules inside the layers: those that may be quantized, and those that are kept.

    Args:
        facts: The model.
        exclude: Patterns of modules that are kept.
        active: Count only the experts that one token passes.
    """
    counted = [
        (is_excluded(name, exclude), group.active_parameters if active else group.parameters)
        for name, group in facts.linears()
    ]
    return sum(size for kept, size in counted if not kept), sum(size for kept, size in counted if kept)


@cache
def touched_parameters(facts: ModelFacts, exclude: tuple[str, ...], rows: int) -> tuple[int, int]:
    """Parameters that a batch of tokens reads together, if each token draws its experts independently.

    The chance that an expert of E is drawn by none of n tokens with k experts each is (1 - k/E)^n.
    """
    quantized = kept = 0.0
    for name, group in facts.linears():
        share = 1.0 - (1.0 - group.active / group.copies) ** rows
        if is_excluded(name, exclude):
            kept += share * group.parameters
        else:
            quantized += share * group.parameters
    return ceil(quantized), ceil(kept)


def head_parameters(facts: ModelFacts, recipe: QuantizationRecipe) -> tuple[int, int]:
    """The same for the output head."""
    size = facts.head_parameters or facts.embedding_parameters  # a tied head multiplies by the embedding table
    return (0, size) if keeps_head(recipe, facts.head) else (size, 0)


def _bits_left(facts: ModelFacts, recipe: QuantizationRecipe) -> float:
    """Mean bits of the weights that may be quantized, if all linear modules together have the requested mean."""
    quantized, kept = _searched_parameters(facts, recipe)
    if not quantized:
        return _UNQUANTIZED_BITS
    return (bits_per_weight(recipe) * (quantized + kept) - kept * _UNQUANTIZED_BITS) / quantized


def _searched_parameters(facts: ModelFacts, recipe: QuantizationRecipe) -> tuple[int, int]:
    layers, head = layer_parameters(facts, recipe.exclude), head_parameters(facts, recipe)
    return layers[0] + head[0], layers[1] + head[1]


def _format_bytes(parameters: int, weights: WeightFormat) -> int:
    scales = _SCALES.get(weights)
    extra = ceil(parameters / scales.group) * scales.scale_bytes if scales else 0
    return int(parameters * format_bits(weights)) // 8 + extra
