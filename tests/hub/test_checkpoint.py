"""What is checked of a downloaded model before anything loads it: headers, index, some values, configuration."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.artifacts.safetensors_header import TensorEntry, read_header
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.hub.checkpoint import check_layout, check_model_config, check_values, read_tensors

from .safetensors_files import WIDTHS, write_safetensors


def entry(start: int, end: int, *, dtype: str = "U8", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def write(path: Path, header: Any, payload: int) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(payload))
    return path


@pytest.mark.parametrize(
    ("header", "payload", "problem"),
    [
        ({"a": entry(0, 8)}, 4, "truncated"),
        ({"a": entry(0, 4)}, 8, "belong to no tensor"),
        ({"a": entry(0, 6), "b": entry(4, 8)}, 8, "overlaps"),
        ({"a": entry(0, 8), "b": entry(2, 4)}, 8, "overlaps"),
        ({"a": entry(0, 2), "b": entry(4, 8)}, 8, "hole"),
        ({"a": entry(2, 4)}, 4, "starts at 2"),
        ({"a": entry(0, 4, dtype="F32", shape=[2])}, 4, "shape"),
        ({"a": entry(0, 4, dtype="PICKLE")}, 4, "dtype"),
        ({"a": {**entry(0, 4), "data_offsets": [4, 0]}}, 4, "bytes"),
        ({"a": {**entry(0, 4), "data_offsets": [-4, 0]}}, 4, "malformed"),
        ({"a": {**entry(0, 4), "data_offsets": [0, 4, 8]}}, 4, "malformed"),
        ({"a": {**entry(0, 4), "data_offsets": [0.0, 4.0]}}, 4, "malformed"),
        ({"a": {**entry(0, 4), "shape": [True, 4]}}, 4, "malformed"),
        ({"a": {**entry(0, 4), "shape": [2**63]}}, 4, "malformed"),
        ({"a": {**entry(0, 4), "extra": 1}}, 4, "exactly"),
        ({"a": 1}, 4, "exactly"),
        ([], 4, "not a JSON object"),
    ],
)
def test_a_malformed_header_is_named(tmp_path: Path, header: Any, payload: int, problem: str) -> None:
    with pytest.raises(IntegrityError, match=problem) as caught:
        read_header(write(tmp_path / "x.safetensors", header, payload))
    assert caught.value.where == "x.safetensors"


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def headers(*second: str) -> dict[str, tuple[TensorEntry, ...]]:
    """Of two shards: `a` and `b` in the first, these in the second."""
    return {
        shard: tuple(TensorEntry(name, "BF16", (4,), 0, 8) for name in names)
        for shard, names in ((FIRST, ("a", "b")), (SECOND, second))
    }


WEIGHT_MAP = {"a": FIRST, "b": FIRST, "c": SECOND}


@pytest.mark.parametrize(
    ("weight_map", "second", "problem"),
    [
        ({**WEIGHT_MAP, "d": "model-00003-of-00003.safetensors"}, "c", r"does not have: \['model-00003"),
        ({**WEIGHT_MAP, "d": FIRST}, "c", r"not in the shard that the index names: \['d'\]"),
        ({**WEIGHT_MAP, "b": SECOND}, "c", r"not in the shard that the index names: \['b'\]"),
        ({"a": FIRST, "c": SECOND}, "c", r"does not list tensors of its shards: \['b'\]"),
        (WEIGHT_MAP, "ca", r"in two shards: \['a'\]"),
        ({"a": 1}, "c", "does not name a shard for each tensor"),
        ({}, "c", "names no tensors"),
    ],
)
def test_an_index_that_the_shards_contradict_is_refused(weight_map: Any, second: str, problem: str) -> None:
    check_layout("x", {INDEX: {"weight_map": WEIGHT_MAP}}, headers("c"))
    with pytest.raises(IntegrityError, match=problem) as caught:
        check_layout("x", {INDEX: {"weight_map": weight_map}}, headers(*second))
    assert caught.value.where == INDEX


def weights(tmp_path: Path, weight_map: Any = None, **files: dict[str, list[int]]) -> Path:
    """Weight files of BF16 zeros: shape by tensor, by the file's name without its ending; and an index, if any."""
    for name, tensors in files.items():
        write_safetensors(
            tmp_path / f"{name}.safetensors", {key: ("BF16", shape, b"") for key, shape in tensors.items()}
        )
    if weight_map is not None:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_the_tensors_of_a_model_are_those_of_its_file_or_of_the_shards_of_its_index(tmp_path: Path) -> None:
    assert set(read_tensors(weights(tmp_path, model={"a": [4], "b": []}))) == {"a", "b"}
    (tmp_path / "model.safetensors").unlink()
    shards = {"a": "one.safetensors", "c": "two.safetensors"}
    assert set(read_tensors(weights(tmp_path, shards, one={"a": [4]}, two={"c": [2, 2]}))) == {"a", "c"}


@pytest.mark.parametrize(
    ("files", "weight_map", "problem"),
    [
        ({}, None, "there is neither"),
        ({"model": {}}, None, "holds no tensors"),
        ({"model": {"a": [4, 0]}}, None, r"'a' has no values: its shape is \[4, 0\]"),
        ({"one": {"a": [4]}, "two": {"a": [4]}}, None, "neither model.safetensors nor model.safetensors.index.json"),
        ({"model": {"a": [4]}, "two": {"b": [4]}}, None, r"not every loader reads this file.*\[two.safetensors\]"),
        ({"model": {"a": [4]}, "two": {"a": [4]}}, {"a": "two.safetensors"}, r"not every loader.*\[two.safetensors\]"),
        ({"one": {"a": [4]}, "two": {"b": [4]}}, {"a": "one.safetensors"}, r"not every loader.*\[two.safetensors\]"),
        ({"one": {"a": [4]}, "two": {}}, {"a": "one.safetensors", "b": "two.safetensors"}, "not in the shard"),
    ],
)
def test_weights_that_loaders_read_differently_or_not_at_all_are_refused(
    tmp_path: Path, files: Any, weight_map: Any, problem: str
) -> None:
    with pytest.raises(IntegrityError, match=problem):
        read_tensors(weights(tmp_path, weight_map, **files))


NAN, INFINITY = float("nan"), float("inf")
NOT_FINITE = {
    "F64": [struct.pack("<d", NAN), struct.pack("<d", INFINITY), struct.pack("<d", -INFINITY)],
    "F32": [struct.pack("<f", NAN), struct.pack("<f", INFINITY), struct.pack("<f", -INFINITY)],
    "F16": [struct.pack("<e", NAN), struct.pack("<e", INFINITY), struct.pack("<e", -INFINITY)],
    "BF16": [b"\xc0\x7f", b"\x80\x7f", b"\x80\xff"],
    "F8_E4M3": [b"\x7f", b"\xff"],
    "F8_E5M2": [b"\x7c", b"\x7d", b"\x7e", b"\x7f", b"\xfc", b"\xff"],
    "F8_E8M0": [b"\xff"],
}
LARGEST = {
    "F64": struct.pack("<d", 1.7e308), "F32": struct.pack("<f", -3.4e38), "F16": struct.pack("<e", 65504.0),
    "BF16": b"\x7f\x7f", "F8_E4M3": b"\x7e", "F8_E5M2": b"\xfb",
    "F8_E8M0": b"\xfe", "I32": b"\xff\xff\xff\x7f", "U8": b"\xff",
}  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "value"), [(dtype, value) for dtype, values in NOT_FINITE.items() for value in values]
)
@pytest.mark.parametrize("size", [1, 300, 10_000])
def test_nan_and_infinity_are_found_first_and_last_and_the_tensor_named(
    tmp_path: Path, dtype: str, value: bytes, size: int
) -> None:
    clean = (dtype, [300], bytes(300 * WIDTHS[dtype]))
    for position in (0, size - 1):
        data = bytes(position * WIDTHS[dtype]) + value
        path = write_safetensors(tmp_path / "x.safetensors", {"a": clean, "b.weight": (dtype, [size], data)})
        with pytest.raises(IntegrityError, match=r"b\.weight") as caught:
            check_values(path, read_header(path))
        assert caught.value.where == "x.safetensors"


@pytest.mark.parametrize("dtype", LARGEST)
def test_the_largest_finite_value_and_integers_pass(tmp_path: Path, dtype: str) -> None:
    tensors = {
        "a": (dtype, [2, 3], LARGEST[dtype] * 6),
        "empty": (dtype, [0, 3], b""),
        "scalar": (dtype, [], LARGEST[dtype]),
    }
    path = write_safetensors(tmp_path / "x.safetensors", tensors)
    check_values(path, read_header(path))


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM", [1]])
def test_a_configuration_without_a_model_class_is_refused(tmp_path: Path, value: Any) -> None:
    (path := tmp_path / "config.json").write_text(json.dumps({"architectures": value}))
    with pytest.raises(IntegrityError, match="architectures") as caught:
        check_model_config(path)
    assert caught.value.where == "config.json"


def test_a_model_that_names_its_repository_s_code_is_told_that_it_never_runs(tmp_path: Path, caplog) -> None:
    named = {"architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}}
    (path := tmp_path / "config.json").write_text(json.dumps(named))
    check_model_config(path)
    assert "is never run" in caplog.text
