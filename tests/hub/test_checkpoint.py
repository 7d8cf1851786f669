from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.artifacts.safetensors_header import TensorEntry
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.hub.checkpoint import check_index, check_model_config, read_tensors

from .safetensors_files import write_safetensors

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def tensor(name: str, shape: tuple[int, ...] = (4,), dtype: str = "BF16") -> TensorEntry:
    size = 2
    for dimension in shape:
        size *= dimension
    return TensorEntry(name=name, dtype=dtype, shape=shape, start=0, end=size)


HEADERS = {FIRST: (tensor("a"), tensor("b")), SECOND: (tensor("c"),)}
WEIGHT_MAP = {"a": FIRST, "b": FIRST, "c": SECOND}


def index(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("weight_map", "metadata", "headers", "problem"),
    [
        ({**WEIGHT_MAP, "d": "model-00003-of-00003.safetensors"}, {}, HEADERS, r"does not have: \['model-00003"),
        ({**WEIGHT_MAP, "d": FIRST}, {}, HEADERS, r"not in the shard that the index names: \['d'\]"),
        ({**WEIGHT_MAP, "b": SECOND}, {}, HEADERS, r"not in the shard that the index names: \['b'\]"),
        ({"a": FIRST, "c": SECOND}, {}, HEADERS, r"does not list tensors of its shards: \['b'\]"),
        (WEIGHT_MAP, {}, {**HEADERS, SECOND: (tensor("c"), tensor("a"))}, r"in two shards: \['a'\]"),
        (WEIGHT_MAP, {"total_size": "24"}, HEADERS, "not a number"),
        ({}, {}, HEADERS, "names no tensors"),
    ],
    ids=["no shard", "no tensor", "other shard", "unlisted", "twice", "total is text", "empty"],
)
def test_an_index_that_the_shards_contradict_is_refused(
    tmp_path: Path, weight_map: Any, metadata: Any, headers: Any, problem: str
) -> None:
    with pytest.raises(IntegrityError, match=problem) as caught:
        check_index(index(tmp_path, {"weight_map": weight_map, "metadata": metadata}), headers)
    assert caught.value.where == "model.safetensors.index.json"


def weights(tmp_path: Path, **files: dict[str, list[int]]) -> Path:
    """Weight files of BF16 zeros: shape by tensor, by the file's name without its ending."""
    for name, tensors in files.items():
        write_safetensors(
            tmp_path / f"{name}.safetensors", {key: ("BF16", shape, b"") for key, shape in tensors.items()}
        )
    return tmp_path


def test_the_tensors_of_a_model_are_those_of_its_file_or_of_the_shards_of_its_index(tmp_path: Path) -> None:
    assert set(read_tensors(weights(tmp_path, model={"a": [4], "b": []}))) == {"a", "b"}
    index(tmp_path, {"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}})
    (tmp_path / "model.safetensors").unlink()
    assert set(read_tensors(weights(tmp_path, one={"a": [4]}, two={"c": [2, 2]}))) == {"a", "c"}


@pytest.mark.parametrize(
    ("files", "weight_map", "problem"),
    [
        ({}, None, "there are no safetensors weights|there is neither"),
        ({"model": {}}, None, "holds no tensors"),
        ({"model": {"a": [4, 0]}}, None, r"'a' has no values: its shape is \[4, 0\]"),
        ({"one": {"a": [4]}, "two": {"a": [4]}}, None, "neither model.safetensors nor model.safetensors.index.json"),
        ({"model": {"a": [4]}, "two": {"b": [4]}}, None, r"not every loader reads this file.*\[two.safetensors\]"),
        ({"model": {"a": [4]}, "two": {"a": [4]}}, {"a": "two.safetensors"}, r"not every loader.*\[two.safetensors\]"),
        ({"one": {"a": [4]}, "two": {"b": [4]}}, {"a": "one.safetensors"}, r"not every loader.*\[two.safetensors\]"),
        ({"model": {"a": [4]}}, {}, "the index names no tensors"),
        ({"one": {"a": [4]}, "two": {}}, {"a": "one.safetensors", "b": "two.safetensors"}, "not in the shard"),
    ],
)
def test_weights_that_loaders_read_differently_or_not_at_all_are_refused(
    tmp_path: Path, files: Any, weight_map: Any, problem: str
) -> None:
    if weight_map is not None:
        index(tmp_path, {"weight_map": weight_map})
    with pytest.raises(IntegrityError, match=problem):
        read_tensors(weights(tmp_path, **files))


LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64}


def check(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    check_model_config(path)


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM", [1]])
def test_a_configuration_without_a_model_class_is_refused(tmp_path: Path, value: Any) -> None:
    check(tmp_path, LLAMA)
    with pytest.raises(IntegrityError, match="architectures") as caught:
        check(tmp_path, {**LLAMA, "architectures": value})
    assert caught.value.where == "config.json"


def test_a_model_that_names_its_repository_s_code_is_told_that_it_never_runs(tmp_path: Path, caplog) -> None:
    check(tmp_path, {**LLAMA, "auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}})
    assert "is never run" in caplog.text
