"""A bounded check of a safetensors file's header, before any loader sees the file.

The format (https://github.com/huggingface/safetensors#format): 8 bytes with the header's length, little-endian; a
JSON header; then one buffer that the tensors fill from start to end, without holes and without overlaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import parse, refuse_lfs_pointer

MAXIMUM_HEADER_BYTES = 100_000_000
"""The limit of the reference implementation."""

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_LONGEST_SHAPE = 64
_FIRST_READ = 65_536
"""Bytes that hold the whole header of most files."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the header; `start` and `end` count bytes from the begin of the buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> tuple[TensorEntry, ...]:
    """The tensors of a safetensors file, in the order of their bytes.

    Raises:
        IntegrityError: The file is truncated, too long, or its header is not what the format asks for.
    """
    with path.open("rb") as stream:

        def read(start: int, length: int) -> bytes:
            stream.seek(start)
            return stream.read(length)

        return parse_header(path.name, path.stat().st_size, read)


def parse_header(name: str, size: int, read: Callable[[int, int], bytes]) -> tuple[TensorEntry, ...]:
    """Parse the header of a safetensors file, wherever it is.

    Args:
        name: The file's, for errors.
        size: Its bytes.
        read: Some of its bytes: the first one, and how many; asked once or twice.

    Raises:
        IntegrityError: As `read_header`.
    """
    begin = read(0, min(size, _FIRST_READ))
    refuse_lfs_pointer(begin, name)
    length = int.from_bytes(begin[:8], "little")
    if len(begin) < 8 or length > min(MAXIMUM_HEADER_BYTES, size - 8):  # noqa: PLR2004 - the format's 8 bytes
        raise _damaged(name, f"a header of {length} bytes does not fit the file's {size}")
    text = begin[8 : 8 + length]
    if len(text) < length:
        text += read(len(begin), length - len(text))
    tensors = sorted(_parse(name, text), key=lambda tensor: (tensor.start, tensor.end))
    _require_full_buffer(name, tensors, size - 8 - length)
    return tuple(tensors)


def _damaged(name: str, problem: str) -> IntegrityError:
    hint = "do not load it; replace it with the published file"
    return IntegrityError(f"not a sound safetensors file: {problem}", where=name, hint=hint)


def _parse(file: str, text: bytes) -> list[TensorEntry]:
    try:
        header = parse(text, where=file, maximum_bytes=MAXIMUM_HEADER_BYTES)
    except IntegrityError as error:
        raise _damaged(file, f"the header is {error.message}") from error
    if not text.startswith(b"{") or not isinstance(header, dict):
        raise _damaged(file, "the header is not a JSON object")
    return [_entry(file, name, fields) for name, fields in header.items() if name != "__metadata__"]


def _entry(file: str, name: str, fields: Any) -> TensorEntry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(file, f"tensor {name[:80]!r} does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _damaged(file, f"tensor {name[:80]!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2 or len(shape) > _LONGEST_SHAPE:  # noqa: PLR2004
        raise _damaged(file, f"tensor {name[:80]!r} has a malformed shape or offsets")
    if prod(shape) * _BITS[dtype] != (offsets[1] - offsets[0]) * 8:
        raise _damaged(file, f"tensor {name[:80]!r} has {offsets[1] - offsets[0]} bytes, not what its shape asks for")
    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), start=offsets[0], end=offsets[1])


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _require_full_buffer(file: str, tensors: list[TensorEntry], buffer_bytes: int) -> None:
    if tensors and tensors[0].start != 0:
        raise _damaged(file, f"the first tensor starts at {tensors[0].start}, not 0")
    for before, after in pairwise(tensors):
        if before.end != after.start:
            relation = "overlaps" if after.start < before.end else "leaves a hole before"
            raise _damaged(file, f"tensor {before.name[:80]!r} {relation} {after.name[:80]!r}")
    end = tensors[-1].end if tensors else 0
    if end != buffer_bytes:
        problem = "is truncated" if end > buffer_bytes else "has bytes that belong to no tensor"
        raise _damaged(file, f"the tensors need {end} bytes, the file has {buffer_bytes}: it {problem}")
