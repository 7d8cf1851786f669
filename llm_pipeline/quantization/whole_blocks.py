"""Layers that a format's blocks of weights do not divide: modelopt calibrates them, and cannot export them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.catalog.exported_names import ALGORITHMS
from llm_pipeline.catalog.modelopt_recipes import formats_of
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat

BLOCK = 128
"""Input columns that share a scale of INT4, in modelopt's own configurations."""

BLOCKWISE: frozenset[WeightFormat] = frozenset({"int4_blockwise", "int4_awq", "w4a8_awq"})


def refuse_partial_blocks(source: Path, recipe: QuantizationRecipe) -> None:
    """Refuse, before any work, layers whose width is not a multiple of the block that their weights would share.

    Raises:
        Unsupported: There are such layers.
    """
    if not formats_of(recipe) & BLOCKWISE:
        return
    from llm_pipeline.quantization.export_structure import intention

    intended, blockwise = intention(source, recipe), {ALGORITHMS[name] for name in BLOCKWISE}
    layers = {name: intended.layers[name][1] for name, kinds in intended.algorithms.items() if kinds & blockwise}
    refuse_partial_widths(layers, recipe)


def refuse_partial_widths(layers: Mapping[str, int], recipe: QuantizationRecipe) -> None:
    """Refuse layers by their input columns alone; see `refuse_partial_blocks`.

    Raises:
        Unsupported: Some are no multiple of the block.
    """
    if partial := {name: columns for name, columns in layers.items() if columns % BLOCK}:
        name = min(partial)
        raise Unsupported(
            f"{len(partial)} of {len(layers)} layers are no multiple of {BLOCK} columns wide, as INT4 needs: "
            f"{name} has {partial[name]}",
            where=f"recipe {recipe.name}",
            hint="exclude these layers, or take another format, e.g. fp8 or int8_weight_only",
        )
