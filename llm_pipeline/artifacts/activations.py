"""What activation and KV cache quantizers do to numbers: round them to the format's grid, and back.

Each function takes numbers of any floating type and shape on any device, and returns them rounded, in the same type.
Four-bit formats follow the OCP Microscaling Formats (MX) specification, version 1.0 (e2m1 elements, e8m0 scales), and
NVIDIA's NVFP4 (e2m1 elements in blocks of 16, one e4m3 scale a block, one fp32 scale a tensor).
"""

from __future__ import annotations

import torch

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
    """Round each vector of the last dimension to e4m3 at its own scale, that of its largest magnitude."""
    largest = values.abs().amax(-1, keepdim=True).to(torch.float32)
    return quantize_fp8(values, torch.where(largest > 0, largest / FP8_MAXIMUM, 1.0))


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
