"""Quantization recipes: what modelopt does to the weights, and what it is calibrated on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from llm_pipeline.config.model import ConfigModel, Name

WeightFormat = Literal[
    "none", "fp8", "int8_smoothquant", "int8_weight_only", "int4_blockwise", "int4_awq", "w4a8_awq", "nvfp4"
]
"""Names of weight (and activation) formats; `none` keeps the baseline's precision."""

CALIBRATED: frozenset[WeightFormat] = frozenset({"fp8", "int8_smoothquant", "int4_awq", "w4a8_awq", "nvfp4"})
"""Formats whose scales depend on calibration data."""


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
        return self
