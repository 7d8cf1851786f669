"""modelopt's names of formats, as its exports have them."""

from __future__ import annotations

from collections.abc import Mapping

from llm_pipeline.config.quantization import WeightFormat

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
