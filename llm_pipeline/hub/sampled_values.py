"""A look at some values of every tensor: NaN and infinity are damage that no hash shows when they were uploaded so.

Values are read in runs of neighbours, spread evenly over the tensor, the first and the last value always among them:
a run costs one page of the disk, single values would cost one each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from llm_pipeline.artifacts.safetensors_header import TensorEntry
from llm_pipeline.base.errors import IntegrityError

_RUN = 64


class _Pattern(NamedTuple):
    """A value is not finite when its bits under `mask` are `equal`."""

    bits: str
    mask: int
    equal: int


_NOT_FINITE = {
    "F16": _Pattern("<u2", 0x7C00, 0x7C00),
    "BF16": _Pattern("<u2", 0x7F80, 0x7F80),
    "F32": _Pattern("<u4", 0x7F80_0000, 0x7F80_0000),
    "F64": _Pattern("<u8", 0x7FF0_0000_0000_0000, 0x7FF0_0000_0000_0000),
    "F8_E5M2": _Pattern("u1", 0x7C, 0x7C),
    "F8_E4M3": _Pattern("u1", 0x7F, 0x7F),  # has no infinity
    "F8_E5M2FNUZ": _Pattern("u1", 0xFF, 0x80),  # the only NaN, where others have minus zero; no infinity
    "F8_E4M3FNUZ": _Pattern("u1", 0xFF, 0x80),
    "F8_E8M0": _Pattern("u1", 0xFF, 0xFF),
}
"""IEEE 754 and bfloat16; FP8 of the Open Compute Project (https://www.opencompute.org/documents/
ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1) and its variants without signed zero."""


def check_values(path: Path, tensors: Sequence[TensorEntry], count: int) -> None:
    """Look at about `count` values of each floating-point tensor of a safetensors file.

    Args:
        path: The file.
        tensors: Its tensors, from `read_header`: in the order of their bytes, the last one at the file's end.
        count: Values of each tensor; smaller tensors are read whole. 0 for none.

    Raises:
        IntegrityError: One is NaN or an infinity; the message names the tensor.
    """
    if not count or not tensors:
        return
    buffer_start = path.stat().st_size - tensors[-1].end
    with path.open("rb", buffering=0) as stream:
        for tensor in tensors:
            pattern = _NOT_FINITE.get(tensor.dtype)
            if pattern is not None and _has_not_finite(stream, tensor, pattern, buffer_start, count):
                raise IntegrityError(
                    f"tensor {tensor.name[:120]!r} holds NaN or an infinity",
                    where=path.name,
                    hint="use another revision; model.sampled_values: 0 takes such weights as they are",
                )


def _has_not_finite(stream: BinaryIO, tensor: TensorEntry, pattern: _Pattern, buffer_start: int, count: int) -> bool:
    kind = np.dtype(pattern.bits)
    for first, length in runs(prod(tensor.shape), count):
        stream.seek(buffer_start + tensor.start + first * kind.itemsize)
        values = np.frombuffer(stream.read(length * kind.itemsize), kind)
        if ((values & kind.type(pattern.mask)) == kind.type(pattern.equal)).any():
            return True
    return False


def runs(size: int, count: int) -> Iterator[tuple[int, int]]:
    """First value and length of each run: `count` of `size` values, or all of them when there are no more.

    The first run starts at value 0 and the last one ends with the last value.
    """
    if size <= max(count, 2):
        if size:
            yield 0, size
        return
    length = max(1, min(_RUN, count // 2))
    number = max(2, count // length)
    for index in range(number):
        yield index * (size - length) // (number - 1), length
