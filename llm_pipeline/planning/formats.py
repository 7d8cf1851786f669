"""Which weight and KV cache formats run where: GPU generations under TensorRT-LLM, and the CPU engine. Pure.

A format needs two things of TensorRT-LLM: kernels for it on that generation (the support matrix), and a reader that
knows the name under which modelopt exports it. The worse of the two counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from llm_pipeline.config.quantization import KvCacheFormat, WeightFormat
from llm_pipeline.planning.catalog import Column, SupportCell, find_reader_support, find_support
from llm_pipeline.planning.weight_storage import format_bits

BaselinePrecision = Literal["float16", "bfloat16"]

CPU_FORMATS: tuple[WeightFormat, ...] = (
    "fp8",
    "int8_smoothquant",
    "fp8_per_channel_token",
    "int8_weight_only",
    "int4_awq",
    "int4_blockwise",
    "none",
)
"""Formats whose packed weights the CPU engine builder can put into its graph."""

CPU_KV_FORMATS: tuple[KvCacheFormat, ...] = ("fp8", "none")
"""KV cache formats whose rounding the CPU engine's graph can reproduce."""

_OFFERED: tuple[WeightFormat, ...] = (
    "fp8",
    "int8_smoothquant",
    "fp8_per_channel_token",
    "fp8_block",
    "int8_weight_only",
    "int4_awq",
    "nvfp4",
    "w4a8_awq",
    "nvfp4_awq",
    "mxfp4",
    "int4_blockwise",
    "none",
)
"""Formats of the same size in the order in which we would offer them."""

_KV_BITS: Mapping[KvCacheFormat, int] = {"fp8": 8, "int8": 8, "nvfp4": 4, "none": 16}
_MATRIX_ROWS: Mapping[WeightFormat, str] = {
    "fp8": "fp8",
    "fp8_per_channel_token": "fp8_rowwise",
    "fp8_block": "fp8_block",
    "int8_smoothquant": "int8_sq",
    "int8_weight_only": "int8_wo",
    "int4_blockwise": "int4_wo",
    "int4_awq": "int4_awq",
    "w4a8_awq": "w4a8_awq",
    "nvfp4": "nvfp4",
    "nvfp4_awq": "nvfp4",
    "mxfp4": "mxfp4",
}
_EXPORTED_NAMES: Mapping[WeightFormat, str] = {
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
    "auto": "MIXED_PRECISION",
}
"""modelopt's names in `hf_quant_config.json`."""


class Platform(NamedTuple):
    """A GPU generation under one backend of TensorRT-LLM."""

    sm: str
    column: Column

    @property
    def backend(self) -> str:
        """The backend in words."""
        return {
            "engine_1_2": "TensorRT engines",
            "pytorch_1_2": "TensorRT-LLM 1.x",
            "pytorch_main": "TensorRT-LLM 1.3 and later",
        }[self.column]


class Support(NamedTuple):
    """Whether something runs on a platform, in words that say what and why."""

    value: Literal["yes", "no", "partial", "unknown"]
    text: str


def weights_support(platform: Platform, weights: WeightFormat, dtype: BaselinePrecision) -> Support:
    """Kernels and reader for one format; `none` is the baseline's own precision."""
    row = _MATRIX_ROWS.get(weights, "fp16" if dtype == "float16" else "bf16")
    kernels = _hardware(platform, row, weights)
    return kernels if kernels.value == "no" else worse(kernels, reader_support(platform, weights))


def reader_support(platform: Platform, weights: WeightFormat) -> Support:
    """Whether the backend reads a format as modelopt exports it; `auto` is a checkpoint of several formats."""
    name = _EXPORTED_NAMES.get(weights)
    if name is None:
        return Support("yes", "")
    cell = find_reader_support(name, platform.column)
    if cell.value == "no":
        return Support("no", f"{platform.backend} does not read {weights} checkpoints ({name} is {cell.why})")
    what = f"{weights} checkpoints ({name}) read by {platform.backend}"
    return Support(cell.value, _in_tables(what, cell))


def kv_support(platform: Platform, kv_cache: KvCacheFormat) -> Support:
    """Whether a KV cache format runs."""
    if kv_cache == "none":
        return Support("yes", "")
    return _hardware(platform, f"kv_{kv_cache}", f"an {kv_cache} KV cache")


def legal_weights(platform: Platform, dtype: BaselinePrecision) -> tuple[WeightFormat, ...]:
    """The formats that are known to run."""
    return tuple(name for name in _OFFERED if weights_support(platform, name, dtype).value == "yes")


def legal_kv_caches(platform: Platform) -> tuple[KvCacheFormat, ...]:
    """The KV cache formats that are known to run."""
    return tuple(name for name in _KV_BITS if kv_support(platform, name).value == "yes")


def nearest_weights(bits: float, legal: Collection[WeightFormat]) -> WeightFormat:
    """The legal format whose weights are nearest in size; unquantized where none is known to run."""
    return min(legal or ("none",), key=lambda name: (abs(format_bits(name) - bits), _OFFERED.index(name)))


def nearest_kv_cache(wanted: KvCacheFormat, legal: Collection[KvCacheFormat]) -> KvCacheFormat:
    """The legal KV cache format that is nearest in size."""
    order = list(_KV_BITS)
    return min(legal, key=lambda name: (abs(_KV_BITS[name] - _KV_BITS[wanted]), order.index(name)))


def worse(first: Support, second: Support) -> Support:
    """Whichever of the two says less."""
    order = ("yes", "partial", "unknown", "no")
    return max(first, second, key=lambda support: order.index(support.value))


def _hardware(platform: Platform, row: str, what: str) -> Support:
    cell = find_support(platform.sm, row, platform.column)
    if cell.value == "no":
        return Support("no", f"{what} does not run on {platform.sm} with {platform.backend} ({cell.why})")
    return Support(cell.value, _in_tables(f"{what} on {platform.sm} with {platform.backend}", cell))


def _in_tables(what: str, cell: SupportCell) -> str:
    return f"{what} is {cell.value} in our tables ({cell.why})"
