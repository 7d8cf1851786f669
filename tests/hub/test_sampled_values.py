from __future__ import annotations

import struct
from pathlib import Path

import pytest

from llm_pipeline.artifacts.safetensors_header import read_header
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.hub.checkpoint import check_values

from .safetensors_files import WIDTHS, write_safetensors

NAN, INFINITY = float("nan"), float("inf")
NOT_FINITE = {
    "F64": [struct.pack("<d", NAN), struct.pack("<d", INFINITY), struct.pack("<d", -INFINITY)],
    "F32": [struct.pack("<f", NAN), struct.pack("<f", INFINITY), struct.pack("<f", -INFINITY)],
    "F16": [struct.pack("<e", NAN), struct.pack("<e", INFINITY), struct.pack("<e", -INFINITY)],
    "BF16": [b"\xc0\x7f", b"\x80\x7f", b"\x80\xff"],
    "F8_E4M3": [b"\x7f", b"\xff"],
    "F8_E5M2": [b"\x7c", b"\x7d", b"\x7e", b"\x7f", b"\xfc", b"\xff"],
    "F8_E4M3FNUZ": [b"\x80"],
    "F8_E5M2FNUZ": [b"\x80"],
    "F8_E8M0": [b"\xff"],
}
LARGEST = {
    "F64": struct.pack("<d", 1.7e308), "F32": struct.pack("<f", -3.4e38), "F16": struct.pack("<e", 65504.0),
    "BF16": b"\x7f\x7f", "F8_E4M3": b"\x7e", "F8_E5M2": b"\xfb", "F8_E4M3FNUZ": b"\xff", "F8_E5M2FNUZ": b"\x7f",
    "F8_E8M0": b"\xfe", "I32": b"\xff\xff\xff\x7f", "U8": b"\xff",
}  # fmt: skip


def check(path: Path, count: int) -> None:
    check_values(path, read_header(path), count)


@pytest.mark.parametrize(
    ("dtype", "value"), [(dtype, value) for dtype, values in NOT_FINITE.items() for value in values]
)
def test_nan_and_infinity_are_found_first_and_last_and_the_tensor_named(
    tmp_path: Path, dtype: str, value: bytes
) -> None:
    clean = (dtype, [300], bytes(300 * WIDTHS[dtype]))
    for position in (0, 299):
        data = bytes(position * WIDTHS[dtype]) + value
        path = write_safetensors(tmp_path / "x.safetensors", {"a": clean, "b.weight": (dtype, [300], data), "c": clean})
        for count in (1, 2, 100, 300, 10_000):
            with pytest.raises(IntegrityError, match=r"b\.weight") as caught:
                check(path, count)
            assert caught.value.where == "x.safetensors"


@pytest.mark.parametrize("dtype", LARGEST)
def test_the_largest_finite_value_and_integers_pass(tmp_path: Path, dtype: str) -> None:
    tensors = {
        "a": (dtype, [2, 3], LARGEST[dtype] * 6),
        "empty": (dtype, [0, 3], b""),
        "scalar": (dtype, [], LARGEST[dtype]),
    }
    check(write_safetensors(tmp_path / "x.safetensors", tensors), 4096)
