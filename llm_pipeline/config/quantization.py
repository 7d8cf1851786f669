"""Quantization recipes: what modelopt does to the weights, and what it is calibrated on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from llm_pipeline.config.model import ConfigModel, Name

WeightFormat = Literal[
    "none", "fp8", "int8_smoothquant", "int8_weight_only", "int4_blockwise", "int4_awq", "w4a8_awq", "nvfp4"
]
"""Names of weight (and activation) formats; `none` keeps the baseline's precision."""

CALIBRATED: frozenset[WeightFormat] = frozenset({"fp8", "int8_smoothquant", "int4_awq", "w4a8_awq", "nvfp4"})
"""Formats whose scales depend on calibration data."""

WEIGHT_BITS: Mapping[WeightFormat, int | None] = {
    "none": None,
    "fp8": 8,
    "int8_smoothquant": 8,
    "int8_weight_only": 8,
    "int4_blockwise": 4,
    "int4_awq": 4,
    "w4a8_awq": 4,
    "nvfp4": 4,
}
"""Bits of a stored weight, without its scales; None keeps the baseline's precision."""

STATIC_ACTIVATIONS: frozenset[WeightFormat] = frozenset({"fp8", "int8_smoothquant", "w4a8_awq", "nvfp4"})
"""Formats that quantize activations too, at a calibrated scale."""

NEEDS_CUDA: frozenset[WeightFormat] = frozenset({"nvfp4"})
"""Formats whose quantization runs on an NVIDIA GPU only (modelopt's dynamic block quantizers are CUDA code)."""


class Calibration(ConfigModel):
    """What the calibration forward passes read.

    Attributes:
        dataset: A jsonl file, relative to `configs/`, with a `text` field in each line.
        samples: How many texts, drawn by `seed` without replacement.
        maximum_tokens: Texts are cut at this many tokens.
        batch_size: Texts a forward pass.
    """

    dataset: str
    samples: int = Field(ge=1)
    maximum_tokens: int = Field(ge=1)
    batch_size: int = Field(default=32, ge=1)
    seed: int = 0


class QuantizationRecipe(ConfigModel):
    """One way to quantize a checkpoint.

    Attributes:
        name: The recipe's name; the file's name without `.yaml`.
        description: One line for the report and the UI.
        weights: The format.
        kv_cache: The format of the KV cache that the exported checkpoint asks for.
        exclude: Module name patterns kept at the baseline's precision.
        calibration: Required by formats with calibrated scales, refused by others.
    """

    name: Name
    description: str = ""
    weights: WeightFormat
    kv_cache: Literal["none", "fp8"] = "none"
    exclude: tuple[str, ...] = ("*lm_head*",)
    calibration: Calibration | None = None

    @model_validator(mode="after")
    def _calibration_where_needed(self) -> QuantizationRecipe:
        needed = self.weights in CALIBRATED or self.kv_cache != "none"
        if needed and self.calibration is None:
            raise ValueError(f"weights: {self.weights} has calibrated scales: add a calibration section")
        if not needed and self.calibration is not None:
            raise ValueError(f"weights: {self.weights} uses no calibration: remove the calibration section")
        if self.weights == "none" and self.kv_cache != "none":
            raise ValueError("weights: none passes the checkpoint through unchanged: a KV cache format needs weights")
        return self
