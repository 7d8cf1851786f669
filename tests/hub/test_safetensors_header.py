from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.artifacts.safetensors_header import read_header
from llm_pipeline.base.errors import IntegrityError


def tensor(start: int, end: int, *, dtype: str = "U8", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def write(path: Path, header: Any, payload: int, *, raw: bytes | None = None, length: int | None = None) -> Path:
    text = json.dumps(header).encode() if raw is None else raw
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(payload))
    return path


def test_a_sound_file_lists_its_tensors_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    header = {
        "b": tensor(4, 12, dtype="F32", shape=[2]),
        "__metadata__": {"format": "pt"},
        "a": tensor(0, 4, dtype="BF16", shape=[1, 2]),
        "empty": tensor(12, 12, shape=[0, 3]),
    }
    tensors = read_header(write(tmp_path / "x.safetensors", header, 12))
    assert [(t.name, t.shape) for t in tensors] == [("a", (1, 2)), ("b", (2,)), ("empty", (0, 3))]


@pytest.mark.parametrize(
    ("header", "payload", "problem"),
    [
        ({"a": tensor(0, 8)}, 4, "truncated"),
        ({"a": tensor(0, 4)}, 8, "belong to no tensor"),
        ({"a": tensor(0, 6), "b": tensor(4, 8)}, 8, "overlaps"),
        ({"a": tensor(0, 8), "b": tensor(2, 4)}, 8, "overlaps"),
        ({"a": tensor(0, 2), "b": tensor(4, 8)}, 8, "hole"),
        ({"a": tensor(2, 4)}, 4, "starts at 2"),
        ({"a": tensor(0, 4, dtype="F32", shape=[2])}, 4, "shape"),
        ({"a": tensor(0, 4, dtype="PICKLE")}, 4, "dtype"),
        ({"a": {**tensor(0, 4), "data_offsets": [4, 0]}}, 4, "bytes"),
        ({"a": {**tensor(0, 4), "data_offsets": [-4, 0]}}, 4, "malformed"),
        ({"a": {**tensor(0, 4), "data_offsets": [0, 4, 8]}}, 4, "malformed"),
        ({"a": {**tensor(0, 4), "data_offsets": [0.0, 4.0]}}, 4, "malformed"),
        ({"a": {**tensor(0, 4), "shape": [True, 4]}}, 4, "malformed"),
        ({"a": {**tensor(0, 4), "shape": [2**63]}}, 4, "malformed"),
        ({"a": {**tensor(0, 4), "extra": 1}}, 4, "exactly"),
        ({"a": 1}, 4, "exactly"),
        ([], 4, "not a JSON object"),
    ],
)
def test_a_malformed_header_is_named(tmp_path: Path, header: Any, payload: int, problem: str) -> None:
    with pytest.raises(IntegrityError, match=problem) as caught:
        read_header(write(tmp_path / "x.safetensors", header, payload))
    assert caught.value.where == "x.safetensors"


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.safetensors", {"a": tensor(0, 4), "b": tensor(4, 9)}, 9).read_bytes()
    path = tmp_path / "cut.safetensors"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(IntegrityError):
            read_header(path)
