"""Layers that a format's blocks, or the ranks of a TensorRT-LLM checkpoint, do not divide: refused before any work.

modelopt calibrates layers that a format's blocks of weights do not divide, and then cannot export them. Its exporter of
TensorRT-LLM checkpoints cuts matrices into equal parts: it knows nothing of the heads in them, pads some of what does
not divide and fails on the rest, after the calibration. Torch is imported by the calls that need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from llm_pipeline.artifacts.checkpoint_loading import load_config
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.catalog.modelopt_recipes import ALGORITHMS, formats_of
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.model_facts.facts import ModelFacts

BLOCK = 128
"""Input columns that share a scale of INT4, in modelopt's own configurations."""

BLOCKWISE: frozenset[WeightFormat] = frozenset({"int4_blockwise", "int4_awq", "w4a8_awq"})
_SCALES_BY_ROW: frozenset[WeightFormat] = frozenset({"int8_smoothquant", "int8_weight_only"})
"""Formats whose key and value heads the exporter cannot repeat, where there are more ranks than such heads."""


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


class DecoderSizes(NamedTuple):
    """The numbers of a decoder that its ranks divide.

    Attributes:
        key_value_heads: Heads of the KV cache.
        head_size: Width of one head.
        intermediate_size: Width of the MLP.
    """

    layers: int
    attention_heads: int
    key_value_heads: int
    head_size: int
    intermediate_size: int


def read_decoder_sizes(checkpoint: Path) -> DecoderSizes:
    """The sizes of a plain checkpoint; only its config is read, by Transformers."""
    config = load_config(checkpoint)
    heads = config.num_attention_heads
    return DecoderSizes(
        layers=config.num_hidden_layers,
        attention_heads=heads,
        key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
    )


def refuse_uneven_ranks(recipe: QuantizationRecipe, sizes: DecoderSizes | ModelFacts) -> None:
    """Refuse ranks that a model does not divide into, before any work.

    Raises:
        Unsupported: It does not; every reason is named.
    """
    if problems := [*_problems(recipe, sizes)]:
        raise Unsupported(
            f"a TensorRT-LLM checkpoint of this model cannot be exported: {'; '.join(problems)}",
            where=f"recipe {recipe.name}",
            hint="change tensorrt_llm_ranks, and the parallelism of the targets with it",
        )


def _problems(recipe: QuantizationRecipe, sizes: DecoderSizes | ModelFacts) -> Iterator[str]:
    tensor, pipeline = recipe.tensorrt_llm_ranks.tensor, recipe.tensorrt_llm_ranks.pipeline
    heads, kv_heads = sizes.attention_heads, sizes.key_value_heads
    if sizes.layers % pipeline:
        yield f"{sizes.layers} layers are not divisible by pipeline {pipeline}"
    for name, count in (("attention heads", heads), ("columns of the MLP", sizes.intermediate_size)):
        if count % tensor:
            yield f"{count} {name} are not divisible by tensor {tensor}"
    if kv_heads % tensor and tensor % kv_heads:
        yield f"{kv_heads} key and value heads do not spread over tensor {tensor}"
    elif tensor > kv_heads and recipe.weights in _SCALES_BY_ROW:
        yield f"{kv_heads} key and value heads of {recipe.weights} cannot be repeated for tensor {tensor}"
    if recipe.weights in BLOCKWISE and tensor > 1:
        for name, width in (("attention", heads * sizes.head_size), ("MLP", sizes.intermediate_size)):
            if width % (tensor * BLOCK):
                yield f"the {width} columns of the {name} give no whole blocks of {BLOCK} to each of {tensor} ranks"
