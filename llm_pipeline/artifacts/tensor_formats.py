"""The weight formats of modelopt's exported checkpoints: how each is stored, and how it is read.

A quantized layer `name` has `name.weight` and `name.weight_scale`, and may have `name.weight_scale_2`,
`name.input_scale` and `name.pre_quant_scale`. How its weight [out, in] is stored:

    FP8, INT8    one byte a number, [out, in]; a scale for the tensor, each row, or each 128 x 128 block
    INT4         two a byte, [out / 2, in]: the low nibble belongs to the even row; a scale for each group of columns
    e2m1 (FP4)   two a byte, [out, in / 2]: the low nibble belongs to the even column; a scale for each block of
                 columns, e4m3 times a scale for the tensor (NVFP4) or a power of two in e8m0 (MXFP4)

NVFP4 and INT4 differ in the dimension that is packed; both are uint8.

The `quantize_...` functions do what activation and KV cache quantizers do to numbers: each takes numbers of any
floating type and shape on any device, and returns them rounded to the format's grid, in the same type. Four-bit formats
follow the OCP Microscaling Formats (MX) specification, version 1.0 (e2m1 elements, e8m0 scales), and NVIDIA's NVFP4
(e2m1 elements in blocks of 16, one e4m3 scale a block, one fp32 scale a tensor).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch

from llm_pipeline.base.errors import IntegrityError

FP8_MAXIMUM = 448.0
"""The largest number of float8_e4m3fn."""

FP4_MAXIMUM = 6.0
"""The largest number of e2m1."""

NVFP4_BLOCK = 16
MXFP4_BLOCK = 32
_SMALLEST_FP8 = 2.0**-9
_SMALLEST_EXPONENT = -127


def quantize_fp8(values: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """Round to e4m3 at a static scale, saturating."""
    scaled = torch.div(values.to(torch.float32), scale).clamp_(-FP8_MAXIMUM, FP8_MAXIMUM)
    return scaled.to(torch.float8_e4m3fn).to(torch.float32).mul_(scale).to(values.dtype)


def quantize_int8(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Round to signed 8 bits at a static scale, saturating."""
    scaled = torch.div(values.to(torch.float32), scale)
    return scaled.round_().clamp_(-128, 127).mul_(scale).to(values.dtype)


def quantize_fp8_per_token(values: torch.Tensor) -> torch.Tensor:
    """Round each vector of the last dimension to e4m3 at its own scale, that of its largest magnitude.

    The scale is a product, not a quotient: compilers make one of a division by a constant, and of bfloat16 the last bit
    of a scale moves one number in a thousand, which lies between two steps.
    """
    largest = values.abs().amax(-1, keepdim=True).to(torch.float32)
    return quantize_fp8(values, torch.where(largest > 0, largest * (1 / FP8_MAXIMUM), 1.0))


def quantize_nvfp4(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Round to e2m1 in blocks of 16 along the last dimension.

    Args:
        values: The last dimension is a multiple of 16.
        scale: Static scale of the tensor; the blocks' own scales are found from the numbers, and are e4m3.
    """
    blocks = values.to(torch.float32).unflatten(-1, (-1, NVFP4_BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    wanted = (largest / (FP4_MAXIMUM * scale)).clamp_(_SMALLEST_FP8, FP8_MAXIMUM)
    steps = wanted.to(torch.float8_e4m3fn).to(torch.float32).mul_(scale)
    return (round_to_fp4(blocks / steps) * steps).flatten(-2).to(values.dtype)


def quantize_mxfp4(values: torch.Tensor) -> torch.Tensor:
    """Round to e2m1 in blocks of 32 along the last dimension, each at the least power of two that saturates nothing."""
    blocks = values.to(torch.float32).unflatten(-1, (-1, MXFP4_BLOCK))
    steps = torch.ldexp(torch.ones_like(blocks[..., :1]), _exponents(blocks.abs().amax(-1, keepdim=True)))
    return (round_to_fp4(blocks / steps) * steps).flatten(-2).to(values.dtype)


def _exponents(largest: torch.Tensor) -> torch.Tensor:
    """The least whole x with 2**x * 6 >= largest."""
    fraction, exponent = torch.frexp(largest / FP4_MAXIMUM)
    return torch.where(fraction > 0.5, exponent, exponent - 1).clamp_min(_SMALLEST_EXPONENT)  # noqa: PLR2004 - 2**-1


def round_to_fp4(values: torch.Tensor) -> torch.Tensor:
    """Round to e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), half to even, saturating."""
    magnitudes = values.abs().clamp(max=FP4_MAXIMUM)
    steps = torch.where(magnitudes < 2, 0.5, torch.where(magnitudes < 4, 1.0, 2.0))  # noqa: PLR2004 - the grid's knees
    return (magnitudes / steps).round_().mul_(steps).copysign_(values)


ActivationFormat = Literal["fp8", "int8", "fp8_per_token", "nvfp4", "mxfp4"]
"""What happens to a layer's input: a static e4m3 or int8 scale, a scale for each token, or one for each block."""

Packing = Literal["none", "rows", "columns"]
Sharing = Literal["tensor", "row", "square", "group"]

SQUARE = 128
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True)
class StoredWeight:
    """A layer's packed weight with its scales.

    Attributes:
        name: The layer.
        packed: The weight as stored.
        scale: Its scales as stored.
        second: The fp32 scale of the whole tensor; None without.
    """

    name: str
    packed: torch.Tensor
    scale: torch.Tensor
    second: torch.Tensor | None = None


@dataclass(frozen=True)
class LayerFormat:
    """How one of modelopt's quantization algorithms stores a linear layer.

    Attributes:
        algorithm: Its name in `hf_quant_config.json`.
        storage: Type of the stored weight.
        packing: The dimension along which two numbers share a byte.
        scale: Type of the stored scales.
        sharing: Which numbers share a scale.
        group: Columns of a group where the format itself says; None where the checkpoint does.
        second_scale: Whether there is a scale of the whole tensor beside.
        activation: What the layer's input is quantized to.
    """

    algorithm: str
    storage: torch.dtype
    packing: Packing
    scale: torch.dtype
    sharing: Sharing
    group: int | None = None
    second_scale: bool = False
    activation: ActivationFormat | None = None

    @property
    def static_activation(self) -> bool:
        """Whether the checkpoint has a calibrated `input_scale`."""
        return self.activation in ("fp8", "int8", "nvfp4")

    def scales(self, rows: int, columns: int, group: int | None) -> int:
        """How many scales a [rows, columns] layer has.

        Args:
            rows: Outputs.
            columns: Inputs.
            group: Columns of a group, where the format leaves it to the checkpoint.
        """
        if self.sharing == "square":
            return ceil(rows / SQUARE) * ceil(columns / SQUARE)
        if self.sharing == "group":
            return rows * ceil(columns / (self.group or group or columns))
        return rows if self.sharing == "row" else 1

    def dequantize(self, stored: StoredWeight) -> torch.Tensor:
        """The weight in fp32, [out, in], on the device of its parts.

        Raises:
            IntegrityError: Types or shapes are not those of the format.
        """
        weight = self._at_scale(self._numbers(stored), stored)
        if stored.second is None:
            return weight
        # W4A8: the kernel computes in FP8, so the weight is rounded once more; NVFP4: the scales have a scale.
        return quantize_fp8(weight, stored.second) if self.packing == "rows" else weight.mul_(stored.second)

    def _numbers(self, stored: StoredWeight) -> torch.Tensor:
        packed, scale = stored.packed, stored.scale
        if packed.dtype is not self.storage or scale.dtype is not self.scale or packed.dim() != 2:  # noqa: PLR2004
            problem = f"{packed.dtype} weights {list(packed.shape)} with {scale.dtype} scales are not {self.algorithm}"
            raise IntegrityError(problem, where=stored.name)
        if (stored.second is not None) != self.second_scale:
            problem = f"{self.algorithm} {'has a' if self.second_scale else 'has no'} weight_scale_2"
            raise IntegrityError(problem, where=stored.name)
        if self.packing == "none":
            return packed.to(torch.float32)
        return unpack_int4(packed).to(torch.float32) if self.packing == "rows" else unpack_fp4(packed)

    def _at_scale(self, numbers: torch.Tensor, stored: StoredWeight) -> torch.Tensor:
        (rows, columns), scale = numbers.shape, _decoded(stored.scale)
        groups = scale.numel() // rows if self.sharing == "group" else 1
        if groups == 0 or columns % groups or scale.numel() != self.scales(rows, columns, columns // groups):
            problem = f"{scale.numel()} scales for {rows} rows and {columns} columns"
            raise IntegrityError(problem, where=f"{stored.name}.weight_scale")
        if self.sharing == "group":
            return numbers.view(rows, groups, -1).mul_(scale.view(rows, groups, 1)).view(rows, columns)
        if self.sharing == "square":
            scale = scale.reshape(ceil(rows / SQUARE), -1)
            return numbers.mul_(scale.repeat_interleave(SQUARE, 0)[:rows].repeat_interleave(SQUARE, 1)[:, :columns])
        return numbers.mul_(scale.reshape(-1, 1))


def _decoded(scale: torch.Tensor) -> torch.Tensor:
    """Scales in fp32; bytes are e8m0 exponents."""
    return (scale.view(torch.float8_e8m0fnu) if scale.dtype is torch.uint8 else scale).to(torch.float32)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [out / 2, in] to signed int8 numbers in -8..7, [out, in]."""
    nibbles = torch.stack([packed & 0xF, packed >> 4], dim=1).reshape(-1, packed.shape[-1]).to(torch.int8)
    return torch.where(nibbles > 7, nibbles - 16, nibbles)  # noqa: PLR2004 - two's complement of four bits


def unpack_fp4(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [out, in / 2] to e2m1 numbers in fp32, [out, in]."""
    values = torch.tensor(_FP4_VALUES, device=packed.device)
    return values[torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2).int()]


_FP8, _INT8, _FP32, _BYTE = torch.float8_e4m3fn, torch.int8, torch.float32, torch.uint8

FORMATS: Mapping[str, LayerFormat] = {
    layer.algorithm: layer
    for layer in (
        LayerFormat("FP8", _FP8, "none", _FP32, "tensor", activation="fp8"),
        LayerFormat("FP8_PER_CHANNEL_PER_TOKEN", _FP8, "none", _FP32, "row", activation="fp8_per_token"),
        LayerFormat("fp8_pb_wo", _FP8, "none", _FP32, "square"),
        LayerFormat("W8A8_SQ_PER_CHANNEL", _INT8, "none", _FP32, "row", activation="int8"),
        LayerFormat("W8A16", _INT8, "none", _FP32, "row"),
        LayerFormat("W4A16_AWQ", _BYTE, "rows", _FP32, "group"),
        LayerFormat("W4A8_AWQ", _BYTE, "rows", _FP32, "group", second_scale=True, activation="fp8"),
        LayerFormat("NVFP4", _BYTE, "columns", _FP8, "group", NVFP4_BLOCK, second_scale=True, activation="nvfp4"),
        LayerFormat(
            "NVFP4_AWQ", _BYTE, "columns", _FP8, "group", NVFP4_BLOCK,
            second_scale=True, activation="nvfp4",
        ),
        LayerFormat("W4A16_NVFP4", _BYTE, "columns", _FP8, "group", NVFP4_BLOCK, second_scale=True),
        LayerFormat("mxfp4", _BYTE, "columns", _BYTE, "group", MXFP4_BLOCK, activation="mxfp4"),
        LayerFormat("W4A8_MXFP4_FP8", _BYTE, "columns", _BYTE, "group", MXFP4_BLOCK, activation="fp8"),
    )
}  # fmt: skip
"""By modelopt's name of the algorithm. `mxfp4` is modelopt's own name: it has none for it that engines know."""
