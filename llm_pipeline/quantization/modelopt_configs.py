"""From a recipe to modelopt's own configurations."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.quantization import (
    BLOCKWISE,
    NEEDS_CUDA,
    WEIGHT_FORMATS,
    KvCacheFormat,
    QuantizationRecipe,
    Search,
    WeightFormat,
)

_KV_CACHE_NAMES: Mapping[KvCacheFormat, str] = {"fp8": "FP8_KV_CFG", "nvfp4": "NVFP4_KV_CFG"}
_NEVER_SEARCHED = "configs/auto_quantize/units/base_disabled_layers"


def refuse_unsupported(recipe: QuantizationRecipe, device: str) -> None:
    """Refuse, before any work, what this device cannot quantize.

    Raises:
        Unsupported: A format of the recipe quantizes on CUDA only.
    """
    cuda = sorted(NEEDS_CUDA.intersection(recipe.formats))
    if cuda and not device.startswith("cuda"):
        raise Unsupported(
            f"{', '.join(cuda)} can be quantized on an NVIDIA GPU only, this stage runs on {device}",
            where=f"recipe {recipe.name}",
            hint="run the quantize stage on a GPU, or take another recipe",
        )


def modelopt_config(recipe: QuantizationRecipe) -> dict[str, Any]:
    """The configuration for `mtq.quantize`; later entries of its list win.

    Raises:
        ValueError: The recipe keeps the baseline's precision or is a search: there is no one configuration.
    """
    config = _of_format(recipe.weights)
    if recipe.weights in BLOCKWISE:
        _regroup(config["quant_cfg"], recipe.group_size)
    return _complete(config, recipe)


def search_formats(search: Search) -> list[dict[str, Any]]:
    """The configurations that AutoQuantize may give to a layer, without the KV cache, which is not searched.

    AutoQuantize looks at one layer at a time and passes over exclusions by name: `disabled_layers` has them.
    """
    return [_of_format(name) for name in search.formats]


def disabled_layers(recipe: QuantizationRecipe) -> list[str]:
    """Name patterns of modules that AutoQuantize keeps out of its search: the recipe's, and modelopt's own."""
    from modelopt.recipe import load_config

    inside = [f"{pattern}.*" for pattern in recipe.exclude if not pattern.endswith("*")]  # of a module by its name
    return [*recipe.exclude, *inside, *map(str, load_config(_NEVER_SEARCHED))]


def kv_cache_config(recipe: QuantizationRecipe) -> dict[str, Any] | None:
    """What a recipe's KV cache adds to a configuration that says what happens to the weights; None for no format.

    Never to be given to `mtq.quantize` alone: nothing in it disables the weights, and modelopt's default for them is
    INT8 on every linear layer.
    """
    import modelopt.torch.quantization as mtq

    if recipe.kv_cache == "none":
        return None
    config: dict[str, Any] = copy.deepcopy(getattr(mtq, _KV_CACHE_NAMES[recipe.kv_cache]))
    return config


def _of_format(weights: WeightFormat) -> dict[str, Any]:
    import modelopt.torch.quantization as mtq

    if weights not in WEIGHT_FORMATS:
        raise ValueError(f"there is no one modelopt configuration for weights: {weights}")
    config: dict[str, Any] = copy.deepcopy(getattr(mtq, WEIGHT_FORMATS[weights].config))
    return config


def _regroup(entries: Sequence[dict[str, Any]], columns: int) -> None:
    for entry in entries:
        given = entry.get("cfg", ())
        for quantizer in [given] if isinstance(given, dict) else given:
            if "block_sizes" in quantizer:
                quantizer["block_sizes"][-1] = columns


def _complete(config: dict[str, Any], recipe: QuantizationRecipe) -> dict[str, Any]:
    """Exclusions, then the KV cache: excluding a layer's weights says nothing about the cache."""
    cache = kv_cache_config(recipe)
    excluded = [
        {"quantizer_name": pattern if pattern.endswith("*") else f"{pattern}.*", "enable": False}
        for pattern in recipe.exclude
    ]
    plain = {"quantizer_name": "*", "parent_class": "nn.Conv1d", "enable": False}  # an export never rounds them
    config["quant_cfg"] = [*config["quant_cfg"], plain, *excluded, *(cache["quant_cfg"] if cache else ())]
    return config
