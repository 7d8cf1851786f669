"""From a recipe to modelopt's own configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from llm_pipeline.config.quantization import NEEDS_CUDA, QuantizationRecipe, WeightFormat
from llm_pipeline.errors import Unsupported

_MODELOPT_NAMES: Mapping[WeightFormat, str] = {
    "fp8": "FP8_DEFAULT_CFG",
    "int8_smoothquant": "INT8_SMOOTHQUANT_CFG",
    "int8_weight_only": "INT8_WEIGHT_ONLY_CFG",
    "int4_blockwise": "INT4_BLOCKWISE_WEIGHT_ONLY_CFG",
    "int4_awq": "INT4_AWQ_CFG",
    "w4a8_awq": "W4A8_AWQ_BETA_CFG",
    "nvfp4": "NVFP4_DEFAULT_CFG",
}
_KV_CACHE_NAMES = {"fp8": "FP8_KV_CFG"}
_WHOLE_QUANTIZERS = frozenset({"*", "*weight_quantizer", "*input_quantizer"})


def refuse_unsupported(recipe: QuantizationRecipe, device: str) -> None:
    """Refuse, before any work, what this device cannot quantize.

    Raises:
        Unsupported: The format quantizes on CUDA only.
    """
    if recipe.weights in NEEDS_CUDA and not device.startswith("cuda"):
        raise Unsupported(
            f"weights: {recipe.weights} can be quantized on an NVIDIA GPU only, this stage runs on {device}",
            where=f"recipe {recipe.name}",
            hint="run the quantize stage on a GPU, or take another recipe",
        )


def modelopt_config(recipe: QuantizationRecipe) -> dict[str, Any]:
    """The configuration for `mtq.quantize`; later entries of its list win.

    A KV cache format is appended to the weights' configuration. Given alone it would leave modelopt's default
    for the weights, INT8 on every linear layer, because nothing in it disables them.

    Raises:
        ValueError: The recipe keeps the baseline's precision, so there is nothing to configure.
    """
    import modelopt.torch.quantization as mtq

    if recipe.weights == "none":
        raise ValueError("recipe of weights: none needs no modelopt configuration")
    config: dict[str, Any] = copy.deepcopy(getattr(mtq, _MODELOPT_NAMES[recipe.weights]))
    if recipe.kv_cache != "none":
        config["quant_cfg"] += copy.deepcopy(getattr(mtq, _KV_CACHE_NAMES[recipe.kv_cache])["quant_cfg"])
    config["quant_cfg"] += [{"quantizer_name": _quantizers(pattern), "enable": False} for pattern in recipe.exclude]
    return config


def is_excluded(config: Mapping[str, Any], module_name: str) -> bool:
    """Whether modelopt's configuration keeps a linear layer at its own precision."""
    patterns = [
        entry["quantizer_name"]
        for entry in config["quant_cfg"]
        if entry.get("enable") is False and "parent_class" not in entry
    ]
    quantizer = f"{module_name}.weight_quantizer"
    return any(fnmatchcase(quantizer, pattern) for pattern in patterns if pattern not in _WHOLE_QUANTIZERS)


def _quantizers(pattern: str) -> str:
    return pattern if pattern.endswith("*") else f"{pattern}.*"
