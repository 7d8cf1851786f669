"""What is known of modelopt without it being installed: its recipe files, its names of formats, limits of a batch.

The table of recipes is package data (`data/modelopt_recipes.json`), written by
`tests/quantization/modelopt_catalog.py` from an installed modelopt.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.catalog.tables import read_table
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.quantization import (
    NEEDS_CUDA,
    WEIGHT_BITS,
    KvCacheFormat,
    QuantizationRecipe,
    WeightFormat,
)

_PARTS_OF_RECIPES = "configs/"


class ModeloptRecipe(ConfigModel):
    """One of modelopt's recipe files.

    Attributes:
        formats: Formats that it gives to layers, fewest bits first.
        weight_only: It quantizes no activation.
        whole_model: It quantizes every linear layer (but for the usual exceptions), not only some kinds of layers.
        kv_cache: Format of the KV cache.
        calibrated: It needs calibration data.
        made_for: Model type or checkpoint that its patterns are written for; empty for any model.
        refused: Why it cannot be used here; empty for one that can.
    """

    formats: tuple[WeightFormat, ...] = ()
    weight_only: bool = False
    whole_model: bool = True
    kv_cache: KvCacheFormat = "none"
    calibrated: bool = False
    made_for: str = ""
    refused: str = ""

    @property
    def bits(self) -> int:
        """Bits of a stored weight of its lowest format, without scales."""
        return WEIGHT_BITS[self.formats[0]] or 16

    @property
    def needs_cuda(self) -> bool:
        """Whether it can be applied on an NVIDIA GPU only."""
        return not NEEDS_CUDA.isdisjoint(self.formats)


@cache
def modelopt_recipes() -> dict[str, ModeloptRecipe]:
    """All recipe files of modelopt by name, those that cannot be used among them."""
    recipes = read_table("modelopt_recipes")["recipes"]
    return {name: ModeloptRecipe.model_validate(content) for name, content in recipes.items()}


def known_modelopt_recipe(name: str) -> ModeloptRecipe:
    """What a recipe file does.

    Args:
        name: As modelopt names it: its path without `.yaml`.

    Raises:
        ConfigError: modelopt has no such recipe (the nearest names are told), or it cannot be used here.
    """
    found = modelopt_recipes().get(name)
    if found is None:
        raise ConfigError(f"modelopt has no recipe {name!r}", hint=_hint(name))
    if found.refused:
        raise ConfigError(f"modelopt's recipe {name} cannot be used: {found.refused}")
    return found


def check_modelopt_recipe(recipe: QuantizationRecipe) -> None:
    """Refuse a recipe of ours whose recipe of modelopt's cannot be used.

    Raises:
        ConfigError: It is unknown, cannot be used here, or needs calibration data that are not given.
    """
    if recipe.modelopt_recipe is None:
        return
    known = known_modelopt_recipe(recipe.modelopt_recipe)
    needed = known.calibrated or recipe.kv_cache != "none"
    if needed and recipe.calibration is None:
        raise ConfigError(f"{recipe.modelopt_recipe} has calibrated scales: add a calibration section")
    if not needed and recipe.calibration is not None:
        raise ConfigError(f"{recipe.modelopt_recipe} uses no calibration: remove the calibration section")


def check_kv_cache(recipe: QuantizationRecipe) -> None:
    """Refuse a KV cache that could not be exported.

    Raises:
        ConfigError: It is INT8.
    """
    if recipe.kv_cache == "int8":
        raise ConfigError(
            "modelopt writes no INT8 KV cache into a Hugging Face checkpoint, so its accuracy could not be judged",
            hint="take kv_cache: fp8",
        )


def formats_of(recipe: QuantizationRecipe) -> frozenset[WeightFormat]:
    """The formats that a recipe of ours may give to a layer.

    Raises:
        ConfigError: It names a recipe of modelopt's that is unknown or cannot be used.
    """
    if recipe.search is not None:
        return frozenset(recipe.search.formats)
    if recipe.modelopt_recipe is not None:
        return frozenset(known_modelopt_recipe(recipe.modelopt_recipe).formats)
    return frozenset({recipe.weights})


def _hint(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        return "write the name of a recipe that modelopt brings, such as general/ptq/fp8_default-kv_fp8, not a path"
    if name.startswith(_PARTS_OF_RECIPES):
        return "configs/ holds parts that recipes are made of; recipes are in general/, huggingface/ and models/"
    return _nearest(name.removesuffix(".yaml"))


def _nearest(name: str) -> str:
    usable = [known for known, recipe in modelopt_recipes().items() if not recipe.refused]
    close = difflib.get_close_matches(name, usable, n=3, cutoff=0.4)
    return f"the nearest are {', '.join(close)}" if close else f"there are {', '.join(usable[:3])} and others"


MIXED = "MIXED_PRECISION"
"""Each layer has a format of its own."""

ALGORITHMS: Mapping[WeightFormat, str] = {
    "fp8": "FP8",
    "fp8_per_channel_token": "FP8_PER_CHANNEL_PER_TOKEN",
    "fp8_block": "fp8_pb_wo",
    "int8_smoothquant": "W8A8_SQ_PER_CHANNEL",
    "int8_weight_only": "W8A16",
    "int4_blockwise": "W4A16_AWQ",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "nvfp4": "NVFP4",
    "nvfp4_awq": "NVFP4_AWQ",
    "mxfp4": "mxfp4",
}
"""Naive INT4 has the label of AWQ."""
