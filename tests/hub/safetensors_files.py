"""Small safetensors files with real numbers in them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1, "I32": 4, "U8": 1,
}  # fmt: skip


def safetensors(tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> bytes:
    """Tensors given as dtype, shape and bytes as a file; bytes shorter than the tensor are filled up with zeros."""
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        padded = data + bytes(prod(shape) * WIDTHS[dtype] - len(data))
        header[name] = {"dtype": dtype, "shape": [*shape], "data_offsets": [len(body), len(body) + len(padded)]}
        body += padded
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> Path:
    """The same, written."""
    path.write_bytes(safetensors(tensors))
    return path
